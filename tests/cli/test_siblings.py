"""Packages with short names may be shadowed: said clearly at import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from blink_numba._siblings import SIBLINGS, ShadowedPackageError, check_siblings


def test_siblings_are_our_own():
    check_siblings()


def test_another_home_is_refused(tmp_path):
    with pytest.raises(ShadowedPackageError, match=f"package '{SIBLINGS[0]}'"):
        check_siblings(tmp_path)


def test_a_foreign_package_in_front_is_named(tmp_path):
    (tmp_path / "ring").mkdir()
    (tmp_path / "ring" / "__init__.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import blink_numba"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert "ShadowedPackageError" in failed.stderr
    assert str(tmp_path / "ring") in failed.stderr
