"""The machine that gpu_check runs on: its GPU, the programs that it runs, built here or packed elsewhere, and what they need around them."""
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ALL_GPUS = "75;80;86;89;90;100;120"
# The file that each target makes.
PROGRAMS = {"plimsoll_cli": "plimsoll", "plimsoll_cuda": "libplimsoll_cuda.so", "test_tests_conformance": "test_tests_conformance", "test_ops": "test_ops"}
# Libraries that every machine has in its own version, or that come with the driver, the toolkit or PyTorch.
NOT_PACKED = re.compile(r"lib(c|m|mvec|dl|rt|pthread|resolv|stdc\+\+|gcc_s|cuda|cudnn|cublas|cublasLt)\.so|ld-")
# Processors since 2013: what is packed need not run where it was built.
ANY_PROCESSOR = ("-DPLIMSOLL_NATIVE=OFF", "-DCMAKE_CXX_FLAGS=-march=x86-64-v3")


def output_of(*words):
    try:
        return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def find_gpu():
    """(name, compute capability as in "90"), or None."""
    lines = output_of("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader").splitlines()
    name, comma, capability = lines[0].rpartition(",") if lines else ("", "", "")
    return (name.strip(), capability.strip().replace(".", "")) if comma else None


def hold_driver(pattern="/dev/nvidia[0-9]*"):
    """Open files of the GPUs' devices: where nobody has one open, the driver starts the GPU anew for each process, which takes seconds. No
    memory of the GPU is taken. Those that may not be opened are left out."""
    held = []
    for device in sorted(glob.glob(pattern)):
        try:
            held.append(open(device, "rb", buffering=0))
        except OSError:
            pass
    return held


def keep_costs(path, earlier):
    """The folder beside the results `path` in which the programs keep what they have measured; with what lies beside those of an
    `earlier` run, so that it is not measured again."""
    folder = path.with_suffix(".costs")
    if earlier and earlier.with_suffix(".costs").resolve() != folder.resolve():
        if earlier.with_suffix(".costs").is_dir():
            shutil.copytree(earlier.with_suffix(".costs"), folder, dirs_exist_ok=True)
        else:
            print(f"gpu_check: no {earlier.with_suffix('.costs')} beside {earlier}: times of kernels are measured again")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def commit(folder):
    """Of the programs: what was packed says it itself."""
    packed = folder / "commit"
    return packed.read_text().strip() if packed.exists() else output_of("git", "-C", ROOT, "rev-parse", "--short", "HEAD")


def build(folder, architectures, *more):
    configure = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_UNITY_BUILD=ON", "-DPLIMSOLL_CUDA=ON",
                 f"-DPLIMSOLL_CUDA_ARCHITECTURES={architectures}", "-DPLIMSOLL_BENCH=OFF", "-DPLIMSOLL_EXAMPLES=OFF", *more]
    if shutil.which("ccache"):
        configure += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache"]
    for words in (configure, ["ninja", "-C", folder, *PROGRAMS]):
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit("gpu_check: the build failed:\n" + (done.stdout + done.stderr)[-4000:])


def libraries_of(file):
    """{name: path} of what it loads and a machine may lack."""
    lines = [line.strip().partition(" => ") for line in output_of("ldd", file).splitlines()]
    return {name: path.split()[0] for name, _, path in lines if path.startswith("/") and not NOT_PACKED.match(name)}


def pack(file, folder, architectures):
    """The programs and the libraries that they load, stripped, in one file for a machine that has a GPU and no toolkit."""
    build(folder, architectures, *ANY_PROCESSOR)
    stage = folder / "packed"
    shutil.rmtree(stage, ignore_errors=True)
    (stage / "lib").mkdir(parents=True)
    for program in PROGRAMS.values():
        shutil.copy2(folder / program, stage)
        for name, path in libraries_of(folder / program).items():
            shutil.copy2(path, stage / "lib" / name)
    for one in [*stage.glob("*"), *(stage / "lib").glob("*")]:
        if one.is_file():
            subprocess.run(["strip", "--strip-unneeded", one], capture_output=True)
    (stage / "commit").write_text(commit(folder) + "\n")
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:xz") as tar:
        for one in sorted(stage.iterdir()):
            tar.add(one, one.name)
    print(f"packed for sm_{architectures} into {file}: {file.stat().st_size / (1 << 20):.1f} MiB")


def unpack(packed, folder):
    """Where the programs are: `packed` itself where it is a folder already, else `folder`, into which it is unpacked."""
    if packed.is_dir():
        return packed.resolve()
    with tarfile.open(packed) as tar:
        tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def environment(folder, python):
    """For our programs alone: libraries that were packed, and cuDNN and cuBLASLt as Python's packages bring them, where the machine has none."""
    code = "import glob, nvidia; print(*[f for p in nvidia.__path__ for f in glob.glob(p + '/*/lib')], sep='\\n')"
    folders = [str(folder / "lib"), *output_of(python, "-c", code).split()]
    if os.environ.get("LD_LIBRARY_PATH"):
        folders.append(os.environ["LD_LIBRARY_PATH"])
    return {"PLIMSOLL_DATA": str(ROOT / "data"), **os.environ, "LD_LIBRARY_PATH": ":".join(folders)}
