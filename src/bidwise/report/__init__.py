"""Pages about results, and figures as files. Everything else reaches them through :func:`write_page`."""

from pathlib import Path
from typing import Any


def write_page(result: Any, folder: str | Path) -> None:
    """``folder/report.html`` about a result, with its command, machine and settings."""
    from bidwise.report.build import run_of, runs_page  # late: matplotlib takes a second
    from bidwise.run_folder import write_text

    write_text(Path(folder) / "report.html", runs_page([run_of(Path(folder), result)]))
