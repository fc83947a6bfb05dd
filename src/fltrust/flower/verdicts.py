"""What the audit says of a node in a round, and why: the words of `records.jsonl`."""

VERDICTS = {
    "used": "its update moved the model",
    "not-chosen": "its update was read, but the rule gave it no share",
    "zero-trust": "its update was read, but got no share: it points away from the server's own",
    "rejected": "its reply could not be used",
    "not-counted": "its update was valid, but the round kept the model",
    "late": "its reply came after the round's deadline",
    "missing": "no reply came that is certainly from this node",
    "banned": "it was connected, but the operator's lists exclude it: it was not asked",
    "quarantined": "it was connected, but too many of its replies were rejected: it was not asked",
}
NOT_ASKED = ("banned", "quarantined")

REASONS = {
    "error": "the node replied with an error",
    "unreadable": "the reply could not be decoded at all",
    "content": "the reply does not hold exactly one record of arrays",
    "too-large": "the reply is larger than the limit",
    "names": "an array is missing, or there is one too many",
    "dtype": "an array has another type of numbers",
    "shape": "an array has another shape",
    "encoding": "an array's bytes are not what numpy.save writes for its type and shape",
    "not-finite": "an array holds NaN or infinity",
    "value": "an array holds a value beyond the limit",
    "zero-update": "the arrays are those that the server sent: nothing was learnt",
    "tiny-update": "the arrays are almost those that the server sent: next to nothing was learnt",
    "examples": "the reported number of examples is not a number of examples",
    "other-round": "the reply says that it belongs to another round",
    "disputed": "several replies to one message, or one in another node's name: nobody can tell whose they are, so none counts",
    "duplicate": "a second reply in one round; the first counts",
    "stranger": "a reply from a node that was not asked",
    "unavailable": "Flower says that the node is offline or its message is gone",
    "incomplete": "a piece of its reply is missing: it gave up sending it, or the SuperLink lost it",
    "not-sent": "the server could not send it the model",
    "silent": "no reply before the deadline",
    "banned": "it is on the ban list",
    "not-allowed": "it is not on the allow list",
    "quarantined": "it is in quarantine",
}

NOT_ITS_FAULT = ("unavailable", "disputed", "incomplete")  # or nobody can say: such a reply is missing, not rejected

ALARMS = {
    "root-unusable": "the server's own update is zero or not finite",
    "nobody-trusted": "nobody was trusted in two rounds in a row",
    "one-node-dominates": "one node has more than half of the shares",
    "replies-falling": "fewer than half of the usual number of replies were valid",
    "unasked": "messages came that nobody asked for: honest nodes send none, and Flower does not say who did",
    "kept": "several rounds in a row kept the model",
    "quarantined": "a node's quarantine begins",
    "list-unreadable": "a file of names, banned or allowed nodes cannot be read: its last valid content stays in force",
}

KEPT = {
    "too-few-replies": "too few replies could be used",
    "nobody-trusted": "nobody was trusted",
    "root-unusable": "the server's own update is zero or not finite",
    "rule": "the rule could not work with the replies that came",
    "not-finite": "the new model would not be finite",
    "rounded-away": "the update is too small to change any weight",
}


def plain(text: object, most: int = 200) -> str:
    """Text that others chose, fit to be written down and printed: printable ASCII only, and short."""
    ascii_only = str(text)[: 4 * most].encode("unicode_escape").decode("ascii")
    return ascii_only if len(ascii_only) <= most else ascii_only[: most - 3] + "..."
