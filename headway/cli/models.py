"""`headway models`: the shelf, one line a model."""

from __future__ import annotations

from headway.cli import terminal
from headway.cli.options import Json


def command(json: Json = False) -> None:
    """List what can be loaded by name, and what each is for.

    Every verb that takes a MODEL takes these names too; the first use fetches the model, later ones find it.
    """
    from headway.checkpoint.place import home
    from headway.checkpoint.shelf import SHELF

    items = list(SHELF.values())
    if json:
        terminal.print_json(
            {
                "folder": str(home() / "models"),
                "models": [
                    {
                        "name": item.name,
                        "title": item.title,
                        "purpose": item.purpose,
                        "licence": item.licence,
                        "terms": item.terms,
                        "source": item.source,
                        "bytes": item.size,
                        "download_bytes": item.download,
                        "downloaded": item.cached,
                        "path": str(item.path),
                    }
                    for item in items
                ],
            }
        )
        return
    lines = []
    for item in items:
        state = "here" if item.cached else f"to fetch: {terminal.size(item.download)} from {item.source}"
        lines.append((item.name, f"{item.title}, {terminal.size(item.size)}, {state}"))
        lines.append(("", f"{item.purpose}; licence {item.licence}"))
    terminal.pairs(lines)
    print(f'\nKept in {home() / "models"}; "headway chat {items[0].name}" tries one.')
