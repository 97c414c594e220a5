"""Fixtures that several files share."""

import multiprocessing
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


@pytest.fixture(scope="module")
def browser():
    """A real browser to open pages in; tests that need one are skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed, so no page was opened in a browser")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def forked():
    """Processes forked from one that has imported torch, which takes seconds; those of bidwise are spawned."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "bidwise.workers", "bidwise.training"])
    return context
