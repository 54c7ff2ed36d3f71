"""Installs a build into a folder and uses it as a third party would: README's program with
find_package(Coupler), trained on two processes by the installed coupler; a project with its own LibTorch;
the error if there is no LibTorch; the projects that `coupler new` writes.

    install_project.py SOURCE_DIR BUILD_DIR CMAKE TORCH_ROOT
"""
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile

source, build, cmake, torch_root = sys.argv[1:5]
source = pathlib.Path(source)
PROJECT = """cmake_minimum_required(VERSION 3.20)
project(train LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
find_package(Coupler REQUIRED COMPONENTS coupler models)
add_executable(train main.cc)
target_link_libraries(train PRIVATE Coupler::coupler Coupler::models)
"""
# Added to the program of `coupler new project`, whose precompiled header it shares.
SECOND = """
add_executable(second main.cc)
target_link_libraries(second PRIVATE coupler::coupler)
coupler_precompile(second)
"""
# The names are those of find_package(Torch); only the existence of a target matters.
OWN_TORCH = """cmake_minimum_required(VERSION 3.20)
project(own LANGUAGES CXX)
add_library(torch INTERFACE IMPORTED)
find_package(Coupler REQUIRED)
get_target_property(libraries coupler_torch INTERFACE_LINK_LIBRARIES)
if(TARGET coupler_torch_c10 OR NOT libraries STREQUAL "torch")
  message(FATAL_ERROR "another LibTorch was used: ${libraries}")
endif()
"""


def run(*command, fails=False, **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=500, **options)
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout


def no_room():
    """In the child: limits the size of files; writes beyond it fail, also for root."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def check(condition, what, text):
    if not condition:
        sys.exit(f"{what}:\n{text}")


# Only this machine's tools: no library path, no variable of Coupler.
environment = {name: value for name, value in os.environ.items()
               if not name.startswith("COUPLER_") and name != "LD_LIBRARY_PATH"}
with tempfile.TemporaryDirectory(prefix="coupler-install-") as folder:
    folder = pathlib.Path(folder)
    prefix = folder / "prefix"
    run(cmake, "--install", build, "--prefix", prefix)
    check(not list(prefix.rglob("libtorch*")), "LibTorch was installed", list(prefix.rglob("libtorch*")))
    coupler = prefix / "bin/coupler"
    for shell, file in (("bash", "bash-completion/completions/coupler"), ("zsh", "zsh/site-functions/_coupler"),
                        ("fish", "fish/vendor_completions.d/coupler.fish")):
        check((prefix / "share" / file).read_text() == run(coupler, "completion", shell),
              f"{file} differs from what this program prints", shell)
    check((prefix / "share/man/man1/coupler-launch.1.gz").is_file(), "there are no man pages", prefix)

    readme = (source / "README.md").read_text()
    write(folder / "train/main.cc", re.search(r"```cpp\n(.*?)```", readme, re.S)[1])
    write(folder / "train/train.toml", re.search(r"```toml\n(.*?)```", readme, re.S)[1])
    write(folder / "train/CMakeLists.txt", PROJECT)

    def configure(project, *options, **more):
        return run(cmake, "-S", folder / project, "-B", folder / project / "build", f"-DCMAKE_PREFIX_PATH={prefix}",
                   *options, env=environment, **more)

    configure("train")
    run(cmake, "--build", folder / "train/build", env=environment)
    # The checkout's own libraries must not be found by accident.
    linked = run("ldd", folder / "train/build/train", env=environment)
    check(f"{prefix}" in linked and "not found" not in linked, "the program finds the wrong libraries", linked)
    print(run(coupler, "launch", "--config", folder / "train/train.toml", folder / "train/build/train",
              env=environment))

    write(folder / "own/CMakeLists.txt", OWN_TORCH)
    configure("own")

    write(folder / "misspelt/CMakeLists.txt", PROJECT + "coupler_precompile(trian)\n")
    write(folder / "misspelt/main.cc", "int main() {}")
    said = configure("misspelt", fails=True)
    check("target trian does not exist" in said, "a nonexistent target is accepted", said)

    write(folder / "none/CMakeLists.txt", PROJECT)
    write(folder / "none/main.cc", "int main() {}")
    said = configure("none", "-DCOUPLER_TORCH_ROOT=/nowhere", fails=True)
    check("/nowhere" in said and "coupler setup-torch" in said, "the error has no hint", said)

    # Generated projects build and pass their tests; existing or wrong names are rejected.
    tools = {**environment, "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}"}
    for kind, name, *language in (("plugin", "my_transport"), ("plugin", "my_other", "--lang", "c++"),
                                  ("project", "my_training")):
        run(coupler, "new", kind, name, *language, cwd=folder, env=environment)
        check(not list(folder.glob("*.unfinished")), "something is left behind", list(folder.glob("*")))
        if kind == "project":
            with open(folder / name / "CMakeLists.txt", "a") as file:
                file.write(SECOND)
        # Otherwise an unused precompiled header would not be an error.
        configure(name, "-DCMAKE_CXX_FLAGS=-Winvalid-pch -Werror=invalid-pch")
        run(cmake, "--build", folder / name / "build", env=environment)
        print(run("ctest", "--test-dir", folder / name / "build", "--output-on-failure", env=tools))
        again = run(coupler, "new", kind, name, fails=True, cwd=folder, env=environment)
        check("exists" in again, "an existing folder is accepted", again)
    for name in ("Upper", "gloo_cpu", "../up", ""):
        refused = run(coupler, "new", "plugin", name, fails=True, cwd=folder, env=environment)
        check("coupler new: " in refused and not (folder / "../up").exists(), f"'{name}' is accepted", refused)
    refused = run(coupler, "new", "plugin", "rusty", "--lang", "rust", fails=True, cwd=folder, env=environment)
    check("neither c nor c++" in refused, "an unknown language is accepted", refused)
    for name in ("my_transport", "my_other"):
        listed = run(coupler, "plugins", env={**environment, "COUPLER_PLUGIN_PATH": str(folder / name / "build")})
        check(name in listed, "the plugin is not listed", listed)
    # A folder where not even root can write.
    for kind in ("plugin", "project"):
        refused = run(coupler, "new", kind, "nowhere", fails=True, cwd="/proc", env=environment)
        check("cannot write nowhere" in refused and "choose a folder where you may write" in refused,
              "the error does not name the cause", refused)
    # A disk that is full after the first bytes: nothing unfinished is left.
    before = sorted(folder.iterdir())
    refused = run(coupler, "new", "plugin", "cut_short", fails=True, cwd=folder, env=environment,
                  preexec_fn=no_room)
    check("coupler: " in refused and sorted(folder.iterdir()) == before, "something is left behind", refused)

    help_text = run(coupler, "setup-torch", "--help", env=environment)
    header = (pathlib.Path(torch_root) / "include/torch/headeronly/version.h").read_text()
    version = ".".join(re.search(rf"#define TORCH_VERSION_{part} (\d+)", header)[1]
                       for part in ("MAJOR", "MINOR", "PATCH"))
    check(f"torch-{version}" in help_text, "setup-torch does not fetch the version that it was built for", help_text)
    for wrong, reason in ((("--torch", "2.10.0"), "from 2.11.0 on"), (("--torch",), "--torch needs a value"),
                          (("--torch=newest",), "from 2.11.0 on")):
        refused = run(coupler, "setup-torch", "--prefix", folder / "torches", *wrong, fails=True, env=environment)
        check(reason in refused and not (folder / "torches").exists(), f"{wrong} is accepted", refused)
    refused = run(coupler, "setup-torch", "--prefx", "x", fails=True, env=environment)
    check("unknown argument '--prefx'" in refused, "a misspelled option is accepted", refused)
print("installed, found and used")
