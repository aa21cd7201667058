"""The files of a trace where they are no plain files."""

import subprocess
import sys

import pytest

WRITE = "from knn_logits.trace.plain import write_whole; write_whole('/dev/stdout', 'a trace')"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no /dev/stdout")
@pytest.mark.parametrize("how", ["w", "a"])
def test_standard_output_that_is_a_file_keeps_what_others_write(tmp_path, how):
    target = tmp_path / "log"
    target.write_text("old\n" if how == "a" else "")
    with target.open(how) as file:
        for code in ("print('first')", WRITE):
            subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert target.read_text() == ("old\n" if how == "a" else "") + "first\na trace"
