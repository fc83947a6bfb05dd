"""HTML as a tree of elements, which escapes whatever is put into it."""

from typing import Any
from xml.etree.ElementTree import Element, tostring


def tag(name: str, *children: Element | str | None, **attributes: Any) -> Element:
    """An element; `class_` is class, data_x is data-x."""
    element = Element(name, {key.rstrip("_").replace("_", "-"): str(value) for key, value in attributes.items() if value is not None})
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif child and len(element):
            element[-1].tail = (element[-1].tail or "") + child
        elif child:
            element.text = (element.text or "") + child
    return element


def text_of(element: Element) -> str:
    return tostring(element, encoding="unicode", method="html")
