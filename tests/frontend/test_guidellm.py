"""guidellm runs unmodified against the server.

It needs torch and transformers, so it is no dependency of the tests: install it where you like
and name its executable in GUIDELLM, or have it on the path.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

GUIDELLM = os.environ.get("GUIDELLM") or shutil.which("guidellm")


@pytest.mark.skipif(GUIDELLM is None, reason="guidellm is not installed (it brings torch): set GUIDELLM")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_guidellm(server, tmp_path, path):
    prompts, report = tmp_path / "prompts.txt", tmp_path / "report.json"
    prompts.write_text("\n".join(f"say {k} again" for k in range(50)))
    done = subprocess.run(
        [
            GUIDELLM, "run", "--disable-console", "--profile", "kind=concurrent,streams=4",
            "--backend", f"kind=openai_http,target={server.url},model=tiny,request_format={path}",
            "--constraint", "kind=max_requests,count=20", "--data", f"kind=text_file,path={prompts}",
            "--output", f"kind=json,path={report}",
        ],
        capture_output=True, text=True, timeout=280, check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    assert benchmark["metrics"]["request_totals"]["successful"] == 20
