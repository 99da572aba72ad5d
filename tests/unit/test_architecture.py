"""The folders are the architecture: imports point downwards, and some things are said in one place only."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

import confrere

SOURCE = Path(__file__).parents[2] / "src" / "confrere"
LEVELS = [
    {"core", "version"},
    {"statistics"},
    {"privacy", "exchange", "transport", "data", "report"},
    {"learning"},
    {"strategies"},
    {"study"},
    {"site"},
    {"node"},
    {"simulation"},
    {"partners"},
    {"evaluate"},
    {"cli", "__init__", "__main__", "api"},
]
"""From the bottom up; a room may import the rooms of lower levels, function-level imports included."""
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
MAY_IMPORT_EACH_OTHER = {"cli", "__init__", "__main__", "api", "core", "version"}


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
    return found


def own_rooms(path: Path) -> set[str]:
    rooms = set()
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "confrere" and len(parts) > 1 and parts[1] in LEVEL:
            rooms.add(parts[1])
    return rooms


def breaches(path: Path, wanted: set[str]) -> list[str]:
    room = room_of(path)
    return [
        other
        for other in sorted(wanted)
        if other != room
        and (
            LEVEL[other] > LEVEL[room]
            or (LEVEL[other] == LEVEL[room] and not {room, other} <= MAY_IMPORT_EACH_OTHER)
        )
    ]


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards(path: Path) -> None:
    assert breaches(path, own_rooms(path)) == []


def test_a_breach_would_be_noticed() -> None:
    assert breaches(SOURCE / "core" / "params.py", {"site"}) == ["site"]
    assert breaches(SOURCE / "exchange" / "topology.py", {"privacy"}) == ["privacy"]


def module_of(path: Path) -> str:
    parts = ("confrere", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(source: str, known: Collection[str]) -> set[str]:
    """The modules that a file imports: also inside functions, for types only, and by `import_module` with their name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = {a.name: f"{node.module}.{a.name}" for a in node.names}
            found |= {whole if whole in known else node.module for whole in names.values()}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return found & set(known)


def cycles(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules on cycles, and between them: those left when modules that nothing imports, or that import nothing,
    are taken away until there is none."""
    left = set(graph)
    while True:
        importers = {other for module in left for other in graph[module] & left}
        gone = {m for m in left if not graph[m] & left or m not in importers}
        if not gone:
            return sorted(left)
        left -= gone


def test_no_module_imports_itself_by_way_of_others() -> None:
    sources = {module_of(p): p.read_text(encoding="utf-8") for p in files()}
    graph = {module: imported_modules(source, sources) for module, source in sources.items()}
    assert sum(map(len, graph.values())) > len(graph)
    assert cycles(graph) == []


def test_a_cycle_of_modules_would_be_noticed() -> None:
    inside = 'def f():\n    from confrere.core import b\n    importlib.import_module("confrere.c")\n'
    assert imported_modules(inside, {"confrere.core.b", "confrere.c"}) == {"confrere.core.b", "confrere.c"}
    types = "if TYPE_CHECKING:\n    from confrere.core.b import B\n"
    assert imported_modules(types, {"confrere.core.b"}) == {"confrere.core.b"}
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_no_module_imports_from_the_package_itself() -> None:
    """`from confrere import study` loads the whole API first, which imports the module that asks for it."""
    found = [
        str(path)
        for path in files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "confrere"
    ]
    assert not found


def test_every_room_is_known() -> None:
    assert {room_of(p) for p in files()} <= set(LEVEL)


def test_strategies_do_not_import_one_another() -> None:
    for path in (SOURCE / "strategies").glob("*.py"):
        if path.stem != "__init__":
            assert not [i for i in imports(path) if i.startswith("confrere.strategies")], path


def test_sockets_live_in_transport_and_node_only() -> None:
    for path in files():
        if room_of(path) not in ("transport", "node"):
            names = {i.split(".")[0] for i in imports(path)}
            assert not names & {"socket", "grpc", "socketserver", "http"}, path
            text = path.read_text(encoding="utf-8")
            assert "open_unix_connection" not in text, path
            assert "open_connection" not in text, path


def test_observers_see_events_and_never_models() -> None:
    for path in (SOURCE / "report").rglob("*.py"):
        assert not imports(path) & {"confrere.core.model", "confrere.core.params", "torch"}, path


def test_the_report_reads_verdicts_and_never_computes_them() -> None:
    """Intervals and the words they earn come from `statistics`."""
    for path in (SOURCE / "report").rglob("*.py"):
        assert not {i.split(".")[0] for i in imports(path)} & {"scipy"}, path
        assert "Gain(" not in path.read_text(encoding="utf-8"), path
    rules = [p for p in files() if "-> Word" in p.read_text(encoding="utf-8")]
    assert [str(p.relative_to(SOURCE)) for p in rules] == ["statistics/verdict.py"]


def test_nothing_is_pickled() -> None:
    for path in files():
        names = {i.split(".")[0] for i in imports(path)}
        assert not names & {"cloudpickle", "dill", "joblib", "shelve"}, path
        if "pickle" in names:  # the one converter of packages that ship pickles, run apart from everything
            assert room_of(path) == "data", path
        text = path.read_text(encoding="utf-8")
        if (
            path == SOURCE / "data" / "encode" / "frozen_encoder.py"
        ):  # weights of a package, after their checksum
            assert text.count("torch.load(") == text.count("weights_only=True)") == 1
        else:
            assert "torch.load(" not in text, path


def calls(path: Path) -> set[str]:
    """The names of all methods that a file calls."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {n.func.attr for n in tree if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}


def test_samples_are_drawn_and_noise_is_added_where_both_are_charged() -> None:
    """Other code asks `privacy.charged_steps`, which states the cost and releases once."""
    for path in files():
        if room_of(path) != "privacy":
            assert not calls(path) & {"bernoulli", "perturb"}, path
    private = {p.stem for p in files() if room_of(p) == "privacy" and "perturb" in calls(p)}
    assert private == {"mechanism", "charged_steps"}


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert not [p for p in files() if p.stem in ("utils", "util", "helpers", "common", "misc", "base")]


LONGEST_MODULE, LONGEST_FUNCTION, MOST_PARAMETERS = 500, 60, 6


def test_no_module_is_long() -> None:
    lengths = {str(p.relative_to(SOURCE)): len(p.read_text("utf-8").splitlines()) for p in files()}
    assert {name: n for name, n in lengths.items() if n > LONGEST_MODULE} == {}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[tuple[str, Function]]:
    """All functions of a file, each with its name there."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, Function):
            yield f"{path.relative_to(SOURCE)}: {node.name}", node


def test_no_function_is_long() -> None:
    lengths = {n: f.end_lineno - f.lineno + 1 for p in files() for n, f in functions(p) if f.end_lineno}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FUNCTION} == {}


def parameters(function: Function) -> int:
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len([n for n in names if n not in ("self", "cls")])


Classes = Mapping[str, tuple[Path, ast.ClassDef]]


def classes_of(sources: Mapping[Path, str]) -> Classes:
    found = [
        (p, n)
        for p, text in sources.items()
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.ClassDef)
    ]
    return {node.name: (path, node) for path, node in found}


def bases(name: str, classes: Classes) -> set[str]:
    """The names of all classes that a class inherits from."""
    if name not in classes:
        return set()
    own = {n.id for b in classes[name][1].bases for n in ast.walk(b) if isinstance(n, ast.Name)} - {name}
    return own.union(*(bases(b, classes) for b in own))


def members(name: str, classes: Classes) -> tuple[set[str], set[str]]:
    """The methods of a class and its attributes, properties among these; inherited ones included."""
    lines = [n for c in (name, *bases(name, classes)) if c in classes for n in classes[c][1].body]
    own = [n for n in lines if isinstance(n, Function)]
    properties = {n.name for n in own if any("property" in ast.unparse(d) for d in n.decorator_list)}
    stored = [n for line in lines for n in ast.walk(line) if isinstance(getattr(n, "ctx", None), ast.Store)]
    fields = {n.id for n in stored if isinstance(n, ast.Name)} | {
        n.attr for n in stored if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "self"
    }
    return {n.name for n in own} - properties, properties | fields


def has(name: str, wanted: tuple[set[str], set[str]], classes: Classes) -> bool:
    methods, attributes = members(name, classes)
    return wanted[0] <= methods and wanted[1] <= attributes


def implementations(classes: Classes) -> set[str]:
    """Classes of which there are several for one purpose: they have the members of a protocol that others have too, are
    registered under a name (`@topology("ring")`), or refine another concrete class; or one of these inherits from them."""
    protocols = {
        n for n, (_, node) in classes.items() if any("Protocol" in ast.unparse(b) for b in node.bases)
    }
    concrete = [n for n in classes if n not in protocols]
    found = {
        name
        for name in concrete
        for decorator in classes[name][1].decorator_list
        if isinstance(decorator, ast.Call) and decorator.args and isinstance(decorator.args[0], ast.Constant)
    }
    found |= {name for name in concrete if refined(name, classes) - protocols}
    for wanted in (members(protocol, classes) for protocol in protocols):
        able = {name for name in concrete if wanted[0] and has(name, wanted, classes)}
        found |= able if len(able) > 1 else set()
    return found.union(*(bases(name, classes) for name in found)) & set(concrete)


def refined(name: str, classes: Classes) -> set[str]:
    """The classes of this package that a class inherits from and whose methods it overrides; errors are asked for by kind."""
    own, above = members(name, {name: classes[name]})[0], bases(name, classes) & set(classes)
    if any("Error" in b or b == "Exception" for b in bases(name, classes)):
        return set()
    return {b for b in above if own & members(b, {b: classes[b]})[0] - {"__init__", "__post_init__"}}


def questions(sources: Mapping[Path, str]) -> list[str]:
    """Where a module asks for the implementation of an object that another module defines."""
    classes = classes_of(sources)
    several = implementations(classes)
    found = []
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            asked: ast.expr | None = None
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
                asked = node.args[1]
            elif isinstance(node, ast.MatchClass):
                asked = node.cls
            names = {n.id for n in ast.walk(asked) if isinstance(n, ast.Name)} if asked else set()
            found += [f"{path}: {name}" for name in names & several if classes[name][0] != path]
    return found


def test_no_module_asks_which_implementation_an_object_is() -> None:
    """What differs between implementations is a method or an attribute. A module may ask about its own classes, and anyone
    for an interface (a protocol), for a value (a model, a number) and for the kind of an error."""
    assert questions({p: p.read_text("utf-8") for p in files()}) == []


def test_a_question_for_the_implementation_would_be_noticed() -> None:
    """Registered, by its members, or as a base; not in its own module, and not for an interface."""
    graphs = """
class Graph(Protocol):
    def column(self): ...
class Alike: ...
@graph("ring")
class Ring(Alike):
    def column(self): isinstance(self, Star)
class Star:
    def column(self): ...
class Value: ...
class Cost:
    def price(self): ...
class Shared(Cost):
    def price(self): ...
"""
    asks = (
        "isinstance(x, Ring)\nisinstance(x, Star | int)\nisinstance(x, (Alike, str))\nisinstance(x, Shared)\n"
    )
    free = "isinstance(x, Graph)\nisinstance(x, Value)\n"
    found = questions({Path("graphs"): graphs, Path("asks"): asks, Path("free"): free})
    assert sorted(found) == ["asks: Alike", "asks: Ring", "asks: Shared", "asks: Star"]


def test_no_function_has_many_parameters() -> None:
    """Where a caller would state more, a value is passed. The options of a command and of the Python API are theirs."""
    inner = [p for p in files() if room_of(p) != "cli"]
    counts = {n: parameters(f) for p in inner for n, f in functions(p) if f.name not in confrere.__all__}
    assert {name: n for name, n in counts.items() if n > MOST_PARAMETERS} == {}
