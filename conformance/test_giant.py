"""Values of 128 MiB, the largest that `-I` allows there: whole, refused beyond it, and nothing left of them.
`giant.py` alone takes 1 GiB."""

import pytest

import giant

pytestmark = pytest.mark.only_cattlegrid


@pytest.mark.parametrize("way", ["tcp", "tls"])
def test_values_of_the_largest_size(binary, way, capsys):
    with capsys.disabled():
        print(f"\n  over {way}")
        giant.run(binary, way, "128m", 512, purge=False)
