"""Runs the page on a Space, which looks for `app.py` in its root."""

import runpy

runpy.run_path("app/app.py", run_name="__main__")
