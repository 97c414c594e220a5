"""A hook of mkdocs: the theme's stand-in for workers comes from the network; ours is next to the page."""

import re
from typing import Any


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Point the page to our stand-in, relative to the page."""
    here = "../" * page.url.count("/")
    return re.sub(r"https://unpkg\.com/iframe-worker/shim", f"{here}assets/file_worker.js", output)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """The same for pages without a source, such as 404.html."""
    return output_content.replace("https://unpkg.com/iframe-worker/shim", "assets/file_worker.js")
