"""What a hook does and what it leaves alone, each case in a fresh interpreter of every Python version."""

from __future__ import annotations

import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from venvs import Venv

#: Lies on sys.path of every case.
FILES = {
    "m.py": "def f(): return 'old'\nX = 1\n",
    "p/__init__.py": "",
    "p/sub.py": "X = 1\n",
    "p/data.txt": "hello",
    "ns/q.py": "X = 1\n",
}

#: Every case finds these names.
PRELUDE = """
import os, sys
from xpu_sitecustomize import Refused, install, is_installed, uninstall, watch
calls = []
def note(module): calls.append(module.__name__)
def new(module): module.f = lambda: 'new'
"""

#: name -> (files of its own, code)
CASES: dict[str, tuple[dict[str, str], str]] = {}


def case(name: str, code: str, files: dict[str, str] | None = None) -> None:
    assert name not in CASES
    CASES[name] = ({path: textwrap.dedent(body) for path, body in (files or {}).items()}, code)


# --- when hooks run ---------------------------------------------------------------------------------------------------

case(
    "once, before an importer binds",
    """
    watch('m', lambda module: (note(module), new(module)))
    import n
    assert calls == ['m'], calls
    assert n.f() == 'new'
    """,
    {
        "n.py": "from m import f",
    },
)
case("at once where it is imported", "import m; watch('m', note); assert calls == ['m'], calls")
case(
    "again after a reload",
    "watch('m', new); import m, importlib; m.f = None; importlib.reload(m); assert m.f() == 'new'",
)
case(
    "again after a reload, also when the first import was not seen",
    "import m, importlib; watch('m', new); importlib.reload(m); assert m.f() == 'new'",
)
case(
    "again when deleted and imported again",
    "watch('m', new); import m; del sys.modules['m']; import m; assert m.f() == 'new'",
)
case(
    "when a body has failed and then succeeds",
    """
    watch('twice', note)
    for _ in range(2):
        try: import twice
        except ZeroDivisionError: assert calls == [] and 'twice' not in sys.modules
    assert calls == ['twice'], calls
    """,
    {
        "twice.py": "import sys; sys.tries = getattr(sys, 'tries', 0) + 1; 1 / (sys.tries - 1)",
    },
)
case(
    "at the end of the body where that is running",
    """
    import half
    assert calls == ['half'], calls
    assert half.f() == 'new' and half.seen == [], half.seen
    """,
    {
        "half.py": """
    import __main__, xpu_sitecustomize
    xpu_sitecustomize.watch('half', lambda module: (__main__.note(module), __main__.new(module)))
    seen = list(__main__.calls)
    def f(): return 'old'
    """,
    },
)
case(
    "a hook may watch its own module",
    """
    watch('m', lambda module: calls or watch('m', note))
    import importlib, m; assert calls == ['m'], calls
    importlib.reload(m); assert calls == ['m', 'm'], calls
    """,
)
case(
    "a hook may watch its own module while that is reloaded",
    """
    import importlib, m
    late = lambda module: calls.append('late')
    watch('m', lambda module: watch('m', late) if module.f() == 'again' else None)
    open('m.py', 'w').write('def f(): return "again"')
    importlib.reload(m); assert calls == ['late'], calls
    """,
)
case(
    "in the order in which they came",
    "for n in 1, 2, 3: watch('m', lambda _, n=n: calls.append(n))\nimport m\nassert calls == [1, 2, 3]",
)
case(
    "a hook may import its own target and others",
    """
    def hook(module):
        import m, json
        calls.append(m is module)
    watch('m', hook); import m; assert calls == [True], calls
    """,
)
case(
    "a package knows its module by the time a hook runs",
    "watch('p.sub', lambda module: calls.append(sys.modules['p'].sub is module)); import p.sub; assert calls == [True]",
)
case(
    "a module that replaces itself",
    """
    watch('self', lambda module: calls.append(type(module).__name__))
    import self
    assert calls == ['SimpleNamespace'] and self.x == 1, calls
    """,
    {
        "self.py": "import sys, types; sys.modules[__name__] = types.SimpleNamespace(x=1)",
    },
)
case(
    "on 32 threads at once: once, and nobody goes on before it has run",
    """
    import threading, time
    watch('m', lambda module: (time.sleep(0.1), note(module), new(module)))
    got, gate = [], threading.Barrier(32)
    def go():
        gate.wait()
        import m
        got.append(m.f())
    threads = [threading.Thread(target=go) for _ in range(32)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert calls == ['m'] and got == ['new'] * 32, (calls, got)
    """,
)
case(
    "a package whose body waits for a thread that imports its watched submodule",
    """
    watch('dl.sub', note); watch('dl', lambda module: None)
    import dl
    assert calls == ['dl.sub'] if not dl.stuck else sys.version_info >= (3, 15), 'deadlock'
    os._exit(0)
    """,
    {
        "dl/__init__.py": """
    import importlib, threading
    thread = threading.Thread(target=importlib.import_module, args=['dl.sub'], daemon=True)
    thread.start(); thread.join(4)
    stuck = thread.is_alive()
    """,
        "dl/sub.py": "",
    },
)
case(
    "nothing happens when a spec is only looked for",
    """
    import importlib.util
    watch('m', note); importlib.util.find_spec('m')
    assert calls == [] and 'm' not in sys.modules
    """,
)
case(
    "sys.modules says None",
    "watch('m', note); sys.modules['m'] = None\ntry: import m\nexcept ModuleNotFoundError: pass\nassert calls == []",
)

# --- every kind of module ---------------------------------------------------------------------------------------------

case(
    "zip",
    """
    import pkgutil, zipimport
    sys.path.insert(0, 'z.zip'); watch('zp', note); watch('zp.other', note)
    import zp, zp.other, importlib
    assert calls == ['zp', 'zp.other'], calls
    assert pkgutil.get_data('zp', 'd.txt') == b'zip'
    importlib.reload(zp.other); importlib.reload(zp)
    assert calls == ['zp', 'zp.other', 'zp.other', 'zp'], calls
    assert type(zp.__loader__) is type(zp.__spec__.loader) is zipimport.zipimporter
    assert 'exec_module' not in vars(zp.__loader__)
    """,
)
case(
    "extension",
    """
    import importlib.machinery
    watch('_elementtree', note)
    import _elementtree
    assert len(calls) == 1
    loader = type(_elementtree.__spec__.loader)
    assert loader is importlib.machinery.ExtensionFileLoader or '_elementtree' in sys.builtin_module_names
    """,
)
case(
    "built-in",
    "watch('_symtable', note); sys.modules.pop('_symtable', None); import _symtable; assert calls == ['_symtable']",
)
case(
    "frozen",
    """
    import contextlib, io
    watch('__phello__', note)
    with contextlib.redirect_stdout(io.StringIO()): import __phello__
    assert calls == ['__phello__'], calls
    """,
)
case(
    "namespace",
    """
    watch('ns', note); watch('ns.q', note)
    import ns.q
    assert calls == ['ns', 'ns.q'], calls
    assert type(ns.__spec__.loader).__name__ in ('NamespaceLoader', '_NamespaceLoader')
    """,
)
case(
    "lazy: at the first use, not before",
    """
    import importlib.util
    watch('m', lambda module: (note(module), new(module)))
    spec = importlib.util.find_spec('m'); spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec); sys.modules['m'] = module; spec.loader.exec_module(module)
    watch('m', lambda module: calls.append('second'))
    assert calls == [], 'forced to load'
    assert module.f() == 'new'
    assert calls == ['m', 'second'], calls
    import p
    assert type(module.__spec__.loader) is type(module.__loader__) is type(sys.modules['p'].__loader__)
    """,
)
case(
    "lazy, and watched only when it is pending",
    """
    import importlib.util
    spec = importlib.util.find_spec('m'); spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec); sys.modules['m'] = module; spec.loader.exec_module(module)
    watch('m', lambda module: (note(module), new(module)))
    assert calls == [], 'forced to load'
    assert module.f() == 'new' and calls == ['m'], calls
    """,
)
case(
    "lazy through a path hook",
    """
    import importlib.machinery, importlib.util, threading
    lazy = importlib.util.LazyLoader.factory(importlib.machinery.SourceFileLoader)
    sys.path_hooks.insert(0, importlib.machinery.FileFinder.path_hook((lazy, ['.py'])))
    sys.path_importer_cache.clear()
    watch('m', lambda module: (note(module), new(module)))
    import m
    assert calls == [], 'forced to load'
    assert m.f() == 'new' and calls == ['m'], calls
    """,
)

# --- nothing shows ----------------------------------------------------------------------------------------------------

case(
    "the spec, its loader and the module's are what they always are",
    """
    import importlib.machinery as im, importlib.util
    watch('b', note); watch('m', note)
    spec = importlib.util.find_spec('m')
    assert isinstance(spec, im.ModuleSpec) and isinstance(spec.loader, im.SourceFileLoader)
    assert repr(spec).startswith('ModuleSpec(name=')
    import b, m
    assert b.SEEN == (True, True), b.SEEN
    import p
    assert type(m.__spec__) is im.ModuleSpec and vars(m.__spec__).keys() == vars(p.__spec__).keys()
    assert type(m.__loader__) is type(m.__spec__.loader) is im.SourceFileLoader
    """,
    {
        "b.py": """
        from importlib.machinery import SourceFileLoader
        SEEN = type(__spec__.loader) is SourceFileLoader, type(__loader__) is SourceFileLoader
        """,
    },
)
case(
    "the loader of a found spec has all that it had",
    """
    import importlib.util
    watch('p', note)
    loader = importlib.util.find_spec('p').loader
    assert loader.get_source('p') == '' and loader.is_package('p') and loader.get_code('p')
    assert loader.get_filename('p').endswith('__init__.py') and loader.get_resource_reader('p')
    """,
)
case(
    "a found spec is copied and pickled as a plain one",
    """
    import copy, importlib.machinery, importlib.util, pickle
    watch('m', note)
    spec = importlib.util.find_spec('m')
    for other in copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec)):
        assert type(other) is importlib.machinery.ModuleSpec and other.origin == spec.origin, other
    """,
)
case(
    "inspect finds the source",
    "watch('m', note); import inspect, m; assert 'old' in inspect.getsource(m) and 'old' in inspect.getsource(m.f)",
)
case(
    "resources, also from the module's body",
    """
    import importlib.resources, pathlib
    open('rp/d.txt', 'w').write('d')
    watch('rp', note)
    import rp
    assert rp.A == 'd' and rp.B == b'd'
    assert isinstance(importlib.resources.files(rp), pathlib.Path)
    """,
    {
        "rp/__init__.py": """
    import importlib.resources, pkgutil
    A = importlib.resources.files(__name__).joinpath('d.txt').read_text()
    B = pkgutil.get_data(__name__, 'd.txt')
    """,
    },
)
case(
    "runpy runs a watched module",
    """
    import runpy, warnings
    warnings.simplefilter('error'); watch('r', note)
    assert runpy.run_module('r', run_name='__main__', alter_sys=True)['N'] == '__main__'
    """,
    {
        "r.py": "N = __name__",
    },
)
case(
    "the traceback of a failing body has no frame of ours",
    """
    import traceback
    watch('ex', note)
    try: import ex
    except ZeroDivisionError as error: frames = traceback.extract_tb(error.__traceback__)
    assert len(frames) == 2, frames
    """,
    {"ex.py": "1 / 0"},
)
case(
    "nor has that of a failing reload",
    """
    import importlib, m, traceback
    watch('m', note)
    open('m.py', 'w').write('1 / 0')
    try: importlib.reload(m)
    except ZeroDivisionError as error: frames = traceback.extract_tb(error.__traceback__)
    assert not [frame for frame in frames if 'xpu_sitecustomize' in frame.filename], frames
    """,
)
case(
    "a warning from the body blames the importer",
    """
    import warnings
    watch('wn', note)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        import wn
    assert [each.filename for each in caught if str(each.message) == 'x'] == ['<string>'], caught
    """,
    {
        "wn.py": "import warnings; warnings.warn('x', DeprecationWarning, stacklevel=2)",
    },
)
case(
    "modules that nobody watches",
    """
    import importlib.machinery as im
    watch('m', note)
    import p.sub, ns
    assert type(p.sub.__spec__) is im.ModuleSpec and type(p.sub.__loader__) is im.SourceFileLoader
    assert calls == []
    """,
)

# --- other finders ----------------------------------------------------------------------------------------------------

case(
    "an entry without find_spec is passed over, as importlib does",
    """
    sys.meta_path.insert(1, object()); watch('m', note)
    try: import m
    except AttributeError as error:
        assert sys.version_info < (3, 12) and 'find_module' in str(error), error  # with no finder of ours, too
    else: assert calls == ['m'], calls
    """,
)
case(
    "a finder behind ours that raises",
    """
    class Hostile:
        def find_spec(self, name, path=None, target=None): raise OSError(name)
    sys.meta_path.insert(1, Hostile()); watch('m', note)
    for name in 'm', 'p':  # watched or not: the same error
        try: __import__(name)
        except OSError as error: assert str(error) == name
        else: raise AssertionError
    del sys.meta_path[1]
    import m
    assert calls == ['m'], calls
    """,
)
case(
    "a finder behind ours that returns nonsense",
    """
    for nonsense in 42, 'spec', object():
        class Nonsense:
            def find_spec(self, name, path=None, target=None): return nonsense
        sys.meta_path.insert(1, Nonsense()); watch('m', note)
        errors = []
        for name in 'm', 'p':
            try: __import__(name)
            except BaseException as error: errors.append(repr(error))
        assert errors[0] == errors[1], errors
        del sys.meta_path[1]
    """,
)
case(
    "a finder behind ours that asks all the others",
    """
    class Other:
        def find_spec(self, name, path=None, target=None):
            for finder in sys.meta_path:
                spec = finder.find_spec(name, path, target) if finder is not self else None
                if spec: return spec
    sys.meta_path.insert(1, Other())
    watch('m', note)
    import m
    assert calls == ['m'], calls
    """,
)
case(
    "a finder whose == is broken",
    """
    class Hostile:
        def __eq__(self, other): raise OSError
        def find_spec(self, name, path=None, target=None): return None
    sys.meta_path.insert(0, Hostile()); sys.meta_path.append(Hostile())
    watch('m', note)
    import m
    assert calls == ['m'] and is_installed()
    """,
)
for _place in ("0", "1"):
    case(
        f"another hook of the same shape, {'before' if _place == '0' else 'behind'} ours",
        f"""
        import importlib.util
        class Other:
            busy = False
            def find_spec(self, name, path=None, target=None):
                if name != 'm' or Other.busy: return None
                Other.busy = True
                try: spec = importlib.util.find_spec(name)
                finally: Other.busy = False
                real = spec.loader
                class Loader:
                    create_module = real.create_module
                    def exec_module(self, module):
                        real.exec_module(module)
                        calls.append('theirs')
                spec.loader = Loader()
                return spec
        sys.meta_path.insert({_place}, Other())
        watch('m', lambda module: (note(module), new(module)))
        import m
        assert sorted(calls) == ['m', 'theirs'] and m.f() == 'new', calls
        """,
    )

# --- what was captured ------------------------------------------------------------------------------------------------

case(
    "a module imported from the body of the target",
    "watch('c1', new); import c1, c2; assert c2.f() == c2.g() == 'new', 'c2 holds the original'",
    {
        "c1.py": "def f(): return 'old'\nimport c2",
        "c2.py": "from c1 import f, f as g",
    },
)
case(
    "only what was imported from its body: who had it from elsewhere keeps it",
    """
    import source, before
    watch('t', new)
    import t
    assert t.f() == 'new' and before.f() == source.f() == 'old'
    """,
    {
        "source.py": "def f(): return 'old'",
        "before.py": "from source import f",
        "t.py": "from source import f",
    },
)
case(
    "every module that holds it, where the target was imported already",
    """
    import m, n
    watch('m', new)
    assert n.f() == n.g() == 'new' and n.X == 1
    """,
    {
        "n.py": "from m import f, X\ng = f",
    },
)
case(
    "who replaces keeps the original",
    """
    import n, m
    n.attach()
    assert m.f() == 'new old', m.f()
    """,
    {
        "n.py": """
    from xpu_sitecustomize import watch
    def hook(module):
        global original
        original = module.f
        module.f = lambda: 'new ' + original()
    def attach(): watch('m', hook)
    """,
    },
)
case(
    "no lazy module is woken up by it",
    """
    import importlib.util
    spec = importlib.util.find_spec('p.sub'); spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec); sys.modules['p.sub'] = lazy; spec.loader.exec_module(lazy)
    import m
    watch('m', new)
    assert type(lazy).__name__ == '_LazyModule'
    """,
)

# --- what hooks raise -------------------------------------------------------------------------------------------------

for _error in ("RuntimeError('boom')", "SystemExit(3)", "MemoryError()"):
    case(
        f"is said in one line and breaks no import: {_error}",
        f"""
        import contextlib, io
        def hook(module): raise {_error}
        watch('m', hook); watch('m', note)
        with contextlib.redirect_stderr(io.StringIO()) as err: import m
        assert m.X == 1 and calls == ['m']
        assert len(err.getvalue().splitlines()) == 1 and {_error.partition("(")[0]!r} in err.getvalue(), err.getvalue()
        """,
    )
case(
    "Ctrl-C in a hook is the user's",
    """
    def hook(module): raise KeyboardInterrupt
    watch('m', hook)
    try: import m
    except KeyboardInterrupt: pass
    else: raise AssertionError
    """,
)
case(
    "Refused stops the import, each time",
    """
    def hook(module): raise Refused('no')
    watch('p.sub', hook)
    for _ in range(2):
        try: import p.sub
        except RuntimeError as error: assert str(error) == 'no'
        else: raise AssertionError('not refused')
        assert 'p.sub' not in sys.modules and not hasattr(sys.modules['p'], 'sub')
    """,
)
case(
    "Refused at once where it is imported",
    """
    import m
    def hook(module): raise Refused('no')
    try: watch('m', hook)
    except Refused: pass
    else: raise AssertionError
    """,
)
case(
    "Refused at a reload and at the first use of a lazy module",
    """
    import importlib.util
    import p
    def hook(module): raise Refused('no')
    spec = importlib.util.find_spec('m'); spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec); sys.modules['m'] = module; spec.loader.exec_module(module)
    watch('m', hook)
    try: module.f
    except Refused: assert 'm' not in sys.modules
    else: raise AssertionError
    import ns.q as q
    try: watch('ns.q', hook)
    except Refused: pass
    try: importlib.reload(q)
    except Refused: assert sys.modules['ns.q'] is q
    else: raise AssertionError
    """,
)

# --- in and out -------------------------------------------------------------------------------------------------------

case(
    "install and uninstall",
    """
    assert is_installed() and len([each for each in sys.meta_path if 'xpu' in repr(each)]) == 1
    assert install() and install() and len([each for each in sys.meta_path if 'xpu' in repr(each)]) == 1
    before = list(sys.meta_path)
    watch('m', note); uninstall(); uninstall()
    assert not is_installed() and sys.meta_path == before[1:]
    import m
    assert calls == []
    install(); del sys.modules['m']
    import m
    assert calls == ['m'] and sys.meta_path == before
    """,
)


@pytest.mark.parametrize("name", CASES)
def test_case(venv: Venv, tmp_path: Path, name: str) -> None:
    run(venv, tmp_path, name)


def test_lazy_imports(shimmed: Callable[[str], Venv], tmp_path: Path) -> None:
    """PEP 810: a hook runs when a lazy import is made good, and what that gives is patched."""
    write(tmp_path, FILES)
    code = """
    watch('m', lambda module: (note(module), new(module)))
    lazy from m import f
    lazy import m
    assert calls == []
    assert f() == m.f() == 'new' and calls == ['m'], calls
    """
    assert shimmed("3.15").run(PRELUDE + textwrap.dedent(code), cwd=tmp_path).err == ""


#: What holds only where no loader is replaced.
SPECS_ONLY = (
    "the spec, its loader",
    "a found spec is copied",
    "Refused at a reload",
    "namespace",
    "at the end of the body",
    "lazy through",
    "on 32 threads",
)

WITHOUT_THE_FLAG = r"""
import importlib._bootstrap as bootstrap, os, re
with open(os.path.join(os.path.dirname(os.__file__), 'importlib', '_bootstrap.py')) as file:
    source = re.search('^def _load_unlocked.*?\n(?=\\S)', file.read(), re.DOTALL | re.MULTILINE).group()
assert source.count('spec._initializing') == 2
source = source.replace('spec._initializing', 'spec.of_another_name')
exec(compile(source, '<frozen importlib._bootstrap>', 'exec'), vars(bootstrap))
"""


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(SPECS_ONLY)])
def test_case_without_the_flag(shimmed: Callable[[str], Venv], tmp_path: Path, name: str) -> None:
    """An importlib to come may no longer have the flag that tells us; the self-test finds out, a stand-in steps in."""
    run(shimmed("3.12"), tmp_path, name, WITHOUT_THE_FLAG)


def run(venv: Venv, folder: Path, name: str, before: str = "") -> None:
    files, code = CASES[name]
    write(folder, FILES | files)
    with zipfile.ZipFile(folder / "z.zip", "w") as archive:
        archive.writestr("zp/__init__.py", "")
        archive.writestr("zp/other.py", "")
        archive.writestr("zp/d.txt", "zip")
    done = venv.run(before + PRELUDE + textwrap.dedent(code), cwd=folder)
    assert done.err == ""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
