"""The first screen: which commands stand together, and in which order. Ctrl-C ends each of them with a line."""

from typing import Any

from typer.core import TyperGroup

from fltrust.cli.stopping import Stopped

PANELS = {
    "Start here": ("demo", "run", "list", "data"),
    "Compare rules and attacks": ("redteam", "sweep", "worst-case", "league", "reproduce", "report"),
    "Run a federation on Flower": ("new-federation", "root", "watch", "audit"),
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


class Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        order = list(PANEL_OF)
        return sorted(super().list_commands(ctx), key=lambda name: order.index(name) if name in order else len(order))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            command.rich_help_panel = PANEL_OF.get(cmd_name)
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise Stopped("stopped", stop) from None
