"""Finds code of `src/dragoman` that no entry point reaches: `python .ci/unreachable.py`; part of `make check`.

Tests alone keep nothing alive. The walk begins where the package is entered from outside: the console script and the
pytest plugin of pyproject.toml, every `__main__.py`, and the public names of `dragoman` and `dragoman.testing`. From
there it follows names through the syntax trees:

- a module is reached when a reached module imports it, or names it in a string (`"dragoman.stores.sqlite.writer"` for
  `python -m`, `"dragoman.cli.call:call"` in a table; `f"dragoman.demo.{part}"` reaches them all); without a name
  behind it, everything public in the module is used;
- a function, class or constant at the top of a module is used when reached code names it, through any import;
- a method is used when its class is, and reached code has `.its_name` anywhere. Methods that other libraries call are
  taken as used: those with a decorator that registers them, those of classes with a base that is not ours, and dunders.

So what it names is dead; what it does not name may still be. Fields of structs and members of enums are not looked at.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "dragoman"
PUBLIC = frozenset({PACKAGE, f"{PACKAGE}.testing"})
"""Packages whose `__all__` is for users."""

QUIET = frozenset(
    {"property", "staticmethod", "classmethod", "cached_property", "cache", "lru_cache", "dataclass", "setter", "final"}
    | {"contextmanager", "asynccontextmanager", "total_ordering", "override"}
)
"""Decorators that do not hand what they decorate to somebody else."""

ALLOWED: dict[str, str] = {
    "dragoman.app.realms.route:Heads.on_header": "httptools' parser calls it",
    "dragoman.app.realms.route:Heads.on_url": "httptools' parser calls it",
    "dragoman.core.ids:uuid7": "tests and benchmarks make ids like the hub's with it",
    "dragoman.stores.memory:MemoryStore.fail_next_commit": "tests of faults have the store fail with it",
    "dragoman.stores.sqlite.store:SqliteStore.writer_pid": "tests of faults kill the writer by it",
}
"""What is meant to stand there although nothing reaches it, with the reason."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Name(NamedTuple):
    """Something defined: `owner` is a module, or `module:Class` for a method."""

    owner: str
    name: str

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}" if ":" in self.owner else f"{self.owner}:{self.name}"


class Module:
    """One file: what it defines, what its imports mean, and which statements run when it is imported."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.is_package = path.name == "__init__.py"
        self.imports: dict[str, tuple[str, str | None]] = {}
        self.defined: dict[str, list[ast.stmt]] = {}
        self.run: list[ast.AST] = []
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.imports[alias.asname or alias.name.partition(".")[0]] = (alias.name, None)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (node.module, alias.name)
        self._sort(tree.body)

    def _sort(self, body: list[ast.stmt]) -> None:
        for statement in body:
            names = list(_assigned(statement))
            if names and all("__" not in name for name in names):
                for name in names:
                    self.defined.setdefault(name, []).append(statement)
                if isinstance(statement, Function | ast.ClassDef) and _registers(statement):
                    self.run.append(ast.Name(statement.name))
            elif isinstance(statement, ast.If | ast.Try):
                self.run += [statement.test] if isinstance(statement, ast.If) else statement.handlers
                for part in ("body", "orelse", "finalbody"):
                    self._sort(getattr(statement, part, []))
            elif not isinstance(statement, ast.Import | ast.ImportFrom):
                self.run.append(statement)


def _assigned(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, Function | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Name):
                    yield part.id


def _registers(node: Function | ast.ClassDef) -> bool:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) not in QUIET:
            return True
    return False


class Walk:
    """Everything reached so far, and what still has to be looked into."""

    def __init__(self, modules: dict[str, Module]) -> None:
        self.modules = modules
        self.reached: set[str] = set()
        self.used: set[Name] = set()
        self.attributes: set[str] = set()
        self.waiting: dict[str, list[tuple[Module, Function, Name]]] = {}  # methods nobody has named yet
        self.todo: list[tuple[Module, ast.AST]] = []

    def enter(self, name: str) -> None:
        """A module is imported, and with it the packages above."""
        while name and name in self.modules and name not in self.reached:
            self.reached.add(name)
            module = self.modules[name]
            self.todo += [(module, node) for node in module.run]
            for target, attribute in module.imports.values():
                self.enter(target)
                self.enter(f"{target}.{attribute}")
            name = name.rpartition(".")[0]

    def use(self, module: str, name: str) -> None:
        """Reached code names something at the top of a module, perhaps through the imports of that module."""
        if module not in self.modules:
            return
        found = self.modules[module]
        target = Name(module, name)
        if target in self.used:
            return
        if name in found.defined:
            self.used.add(target)
            self.todo += [(found, node) for node in found.defined[name]]
        elif name in found.imports:
            self.used.add(target)
            origin, attribute = found.imports[name]
            if attribute is not None:
                self.use(origin, attribute)

    def publish(self, module: str, name: str) -> None:
        """Users may call every method of this class that has no underscore."""
        home, label = self._home(module, name)
        for node in self.modules[home].defined[label] if home else ():
            if isinstance(node, ast.ClassDef):
                for statement in node.body:
                    if isinstance(statement, Function) and not statement.name.startswith("_"):
                        self._name_methods(statement.name)
                for base in node.bases:
                    self.publish(home or "", getattr(base, "id", ""))

    def finish(self) -> None:
        while self.todo:
            module, node = self.todo.pop()
            self._look(module, node)

    def _look(self, module: Module, node: ast.AST) -> None:
        if isinstance(node, ast.ClassDef):
            self._look_at_class(module, node)
            return
        if isinstance(node, ast.Name):
            self.use(module.name, node.id)
        elif isinstance(node, ast.Attribute):
            self._attribute(module, node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._string(module, node.value)
        elif isinstance(node, ast.JoinedStr):
            self._pattern(module, node)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "methodcaller"):
            for part in node.args:
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    self._name_methods(part.value)
        for child in ast.iter_child_nodes(node):
            self._look(module, child)

    def _look_at_class(self, module: Module, node: ast.ClassDef) -> None:
        foreign = any(not self._is_ours(module, base) for base in node.bases)
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self._look(module, part)
        for statement in node.body:
            if isinstance(statement, Function) and not (
                foreign or statement.name.startswith("__") or _registers(statement) or statement.name in self.attributes
            ):
                method = Name(f"{module.name}:{node.name}", statement.name)
                self.waiting.setdefault(statement.name, []).append((module, statement, method))
            else:
                self._look(module, statement)

    def _is_ours(self, module: Module, base: ast.expr) -> bool:
        """Whether we know who calls the methods of this base: it is ours, or one that calls none."""
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Attribute):
            return False
        origin, _ = module.imports.get(getattr(name, "id", ""), (PACKAGE, None))
        if origin in ("msgspec", "typing", "enum", "abc", "dataclasses", "collections.abc"):
            return True
        if not origin.startswith(PACKAGE):
            return False
        home, label = self._home(module.name, getattr(name, "id", ""))
        if home is None:
            return getattr(name, "id", "").endswith(("Error", "Exception")) or getattr(name, "id", "") in ("object",)
        for definition in self.modules[home].defined.get(label, ()):
            if isinstance(definition, ast.ClassDef):
                return all(self._is_ours(self.modules[home], above) for above in definition.bases)
        return True

    def _home(self, module: str, name: str) -> tuple[str | None, str]:
        """Where a name that a module uses is defined."""
        while module in self.modules:
            if name in self.modules[module].defined:
                return module, name
            origin, attribute = self.modules[module].imports.get(name, ("", None))
            if attribute is None:
                break
            module, name = origin, attribute
        return None, name

    def _attribute(self, module: Module, node: ast.Attribute) -> None:
        path = ast.unparse(node.value) if isinstance(node.value, ast.Name | ast.Attribute) else ""
        first, _, rest = path.partition(".")
        origin, attribute = module.imports.get(first, ("", None))
        target = ".".join(part for part in (origin, attribute, rest) if part) if origin else ""
        if attribute is None and origin.partition(".")[0] == first:
            target = path
        if target in self.modules:
            self.use(target, node.attr)
        else:
            self._name_methods(node.attr)

    def _name_methods(self, name: str) -> None:
        self.attributes.add(name)
        for module, function, _ in self.waiting.pop(name, ()):
            self.todo.append((module, function))

    def _string(self, module: Module, text: str) -> None:
        """Strings that are types, the names in tables of `module:name`, and modules by their names."""
        home, _, name = text.partition(":")
        if home.startswith(f"{PACKAGE}.") and home in self.modules:
            self.enter(home)
            for defined in [name] if name else self.modules[home].defined:
                if name or not defined.startswith("_"):
                    self.use(home, defined)
        elif re.fullmatch(r"[A-Za-z_][\w\[\], |.]*", text) and len(text) < 200:
            for word in re.findall(r"\w+", text):
                self.use(module.name, word)

    def _pattern(self, module: Module, node: ast.JoinedStr) -> None:
        """`f"dragoman.demo.{part}"`, `f"{__name__}.{home}"`: modules of such a name, and all that is public in them."""
        parts = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(re.escape(str(part.value)))
            elif ast.unparse(part) == "f'{__name__}'":
                parts.append(re.escape(module.name))
            else:
                parts.append("[a-z0-9_]+")
        pattern = "".join(parts)
        if pattern.startswith(f"{PACKAGE}\\."):
            for name, found in self.modules.items():
                if re.fullmatch(pattern, name):
                    self.enter(name)
                    for defined in found.defined:
                        if not defined.startswith("_"):
                            self.use(name, defined)


def load(root: Path) -> dict[str, Module]:
    """Every module of the package by its name."""
    modules = {}
    for path in sorted((root / "src" / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root / "src").with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path)
    return modules


def walk(modules: dict[str, Module], root: Path) -> Walk:
    """Start everywhere where the package is entered from outside."""
    found = Walk(modules)
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    entries = [*project["scripts"].values()]
    for group in project["entry-points"].values():
        entries += group.values()
    for entry in entries:
        module, _, name = entry.partition(":")
        found.enter(module)
        for defined in [name] if name else modules[module].defined:
            found.use(module, defined)
    for name in modules:
        if name.endswith(".__main__"):
            found.enter(name)
    for package in modules.keys() & PUBLIC:
        found.enter(package)
        for name in modules[package].imports:
            found.use(package, name)
            found.publish(package, name)
    found.finish()
    return found


def unreachable(root: Path = ROOT) -> list[str]:
    """What nothing reaches, by name: modules, and what stands in modules that are reached."""
    modules = load(root)
    found = walk(modules, root)
    lines = [name for name in modules if name not in found.reached]
    for name, module in modules.items():
        if name in found.reached and not name.endswith("_pb2"):
            lines += [str(Name(name, one)) for one in module.defined if Name(name, one) not in found.used]
    for methods in found.waiting.values():
        lines += [str(method) for _, _, method in methods]
    return sorted(set(lines))


def main() -> int:
    lines = unreachable()
    dead = [line for line in lines if line not in ALLOWED]
    stale = [name for name in ALLOWED if name not in lines]
    for line in dead:
        print(f"no entry point reaches {line}")
    for line in stale:
        print(f"{line} is reached: take it out of ALLOWED in .ci/unreachable.py")
    return 1 if dead or stale else 0


if __name__ == "__main__":
    sys.exit(main())
