"""The C API as a C program sees it: the header by itself, and the staged library."""

import os
import tempfile
from pathlib import Path

from binaries import LIBRARY, failure_of, only
from report import HERE

STRICT = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]


def header_problems(header):
    with tempfile.TemporaryDirectory() as directory:
        # Nothing around it, and twice: it brings what it needs and can be included again.
        source = Path(directory, "alone.c")
        source.write_text(f'#include "{header}"\n#include "{header}"\nint main(void) {{ return SPC_OK; }}\n')
        yield from failure_of(["cc", *STRICT, "-c", source, "-o", Path(directory, "alone.o")])


def program_problems(stage):
    library = only(stage, f"usr/lib*/**/{LIBRARY}")
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "old_caller")
        include, link = f"-I{stage}/usr/include", [f"-L{library.parent}", "-lspank_container"]
        yield from failure_of(["cc", *STRICT, include, HERE / "old_caller.c", "-o", program, *link])
        if program.exists():
            yield from failure_of([program], {**os.environ, "LD_LIBRARY_PATH": str(library.parent)})


def check(report, stage):
    report.check("runtime.h alone is C99", header_problems(stage / "usr/include/spank_container/runtime.h"))
    report.check("a C program links with the library, and structs of other versions are understood", program_problems(stage))
