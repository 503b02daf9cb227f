"""Ray: join a cluster, or start Ray on this machine, where no other machine reaches it and no files of it stay.

On one machine all ports are bound to the loopback address, calls need a token that only this run's processes know, and Ray's
session is in a folder of its own, which is removed with the process.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants

from paras2s.errors import ConfigError, one_line
from paras2s.rollout.worker_group import RESUME
from paras2s.utils.process_pool import cores

# The namespace of a Ray that this program started.
LOCAL = "paras2s-local"
TRIES = 3
# The path of a Unix socket has at most 107 bytes, and Ray's own part of it about 65.
LONGEST_FOLDER = 40
SESSION = re.compile(r"p2s-ray-(\d+)-\w+")
WATCHED_EVERY_S = 1.0
# Without these processes of Ray nothing goes on.
VITAL = ("gcs_server", "raylet")
# Beginnings of the names of Ray's processes; agents are Python at first.
RAYS = ("gcs_server", "raylet", "ray::", "python")
# Most starts that fail are ended by Ray itself after half a minute, and tried again.
START_PATIENCE_S = 35.0
CONNECT_TIMEOUT_S = 10.0
# A cluster's head may be started again; Ray itself ends this process by a line of its own after 60 s.
HEAD_MISSED_S, HEAD_PATIENCE_S = 10.0, 45.0


def start_ray(address: str | None, cpus: int = 0) -> None:
    """Join a cluster, or start Ray on this machine; quiet, without a dashboard, and only once.

    A local Ray that this process started for fewer workers is started again.

    Raises:
        ConfigError: nothing listens at the address, or Ray does not start.
    """
    if ray.is_initialized():
        has = ray.cluster_resources().get("CPU", 0.0)  # type: ignore[no-untyped-call]
        if address or has >= cpus or ray.get_runtime_context().namespace != LOCAL:
            return
        ray.shutdown()
    # Workers without a GPU of their own see none; else each of them would open the first.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    # A lost worker's calls are made again; Ray would print a page for each.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    # Ray runs workers at priority 15, which Linux weighs 36 where a busy program at 0 weighs 1024.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray's head keeps a record of each call for its dashboard, which is off: 3.6 kB each until there are 100,000.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    if address:
        _check_reachable(address)
        # The cluster's own processes do not have this one's environment.
        hidden = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
        ray.init(address=address, log_to_driver=False, runtime_env={"env_vars": hidden})
        # None for a client of Ray (ray://), whose connection is Ray's own matter.
        if node := _node():
            threading.Thread(target=watch_head, args=(node,), daemon=True).start()
    else:
        _start_here(max(4, cores(), cpus))
    if threading.current_thread() is threading.main_thread():
        # Ray's own end the process without a word.
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit() and (error := _refusal(host, int(port))):
        raise ConfigError(
            f"ray_address: nothing listens at {address} ({error}); `ray start --head` prints its address"
        ) from error


def _refusal(host: str, port: int) -> OSError | None:
    """Return why no connection to a port is made; None if it is made."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error
    return None


def _start_here(cpus: int) -> None:
    """Start Ray on this machine, again if a loaded machine lets it fail. Raises ConfigError: no start succeeds."""
    # Without clusters Ray takes 127.0.0.1 for this machine's address, also where it was given, and listens there alone.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        # Else Ray writes a token into the home folder, for everyone to read.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    for tried in range(1, TRIES + 1):
        folder, started = session_folder(), threading.Event()
        threading.Thread(target=watch_start, args=(started, folder, vital_processes()), daemon=True).start()
        try:
            # Actors take turns on the cores, so more actors than cores do no harm.
            ray.init(
                # Else a cluster that runs on this machine would be joined, which takes no `num_cpus`.
                address="local",
                namespace=LOCAL,
                num_cpus=cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder),
            )
        except Exception as error:
            started.set()
            ray.shutdown()
            end_processes(folder)
            shutil.rmtree(folder, ignore_errors=True)
            if tried == TRIES:
                raise ConfigError(
                    f"Ray does not start on this machine, tried {TRIES} times ({one_line(error)[:200]}); look at free memory, "
                    f"at the disk of {folder.parent}, and at other programs' load"
                ) from error
        else:
            atexit.register(_end, folder)
            threading.Thread(target=watch_ray, args=(_node(), folder), daemon=True).start()
            return
        finally:
            started.set()


def session_folder() -> Path:
    """Make Ray's session folder with room for sockets; killed processes' are removed. Raises ConfigError: it cannot."""
    parents = [name for name in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm") if len(name) <= LONGEST_FOLDER]
    for parent in parents:
        try:
            remove_abandoned(Path(parent).glob("p2s-ray-*"))
            return Path(tempfile.mkdtemp(prefix=f"p2s-ray-{os.getpid()}-", dir=parent))
        except OSError:
            continue
    raise ConfigError(
        f"no folder for the sockets of Ray: set TMPDIR to a writable folder with a path of at most {LONGEST_FOLDER} characters"
    )


def remove_abandoned(folders: Iterable[Path]) -> None:
    """Remove the session folders whose process is gone."""
    for folder in folders:
        named = SESSION.fullmatch(folder.name)
        if named and not os.path.exists(f"/proc/{named[1]}") and os.path.exists("/proc/self"):
            end_processes(folder)
            shutil.rmtree(folder, ignore_errors=True)


def end_processes(folder: Path) -> None:
    """Kill the processes of Ray that hold files of a session folder open, but this one.

    Workers end with their raylet, and agents wait for a killed head for a minute more. They are not known by their environment,
    which Ray overwrites with their names.
    """
    # Ray brings it along.
    import psutil

    # Open files have their real names.
    folder = folder.resolve()
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error):
            rays = (process.info["name"] or "").lower().startswith(RAYS) and process.pid != os.getpid()
            if rays and any(Path(file.path).is_relative_to(folder) for file in process.open_files()):
                process.kill()


def _end(folder: Path) -> None:
    ray.shutdown()
    end_processes(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _node() -> Any:
    return ray._private.worker._global_node


def watch_start(started: threading.Event, folder: Path, others: Mapping[Any, str]) -> None:
    """Watch Ray's processes, but for `others` of earlier starts, while Ray starts; end this process where Ray waits in vain.

    Ray waits for its head process for a minute, and then ends this process with 1 and a page of its own state.
    """
    seen: dict[Any, str] = {}
    while not started.wait(WATCHED_EVERY_S):
        seen |= {process: name for process, name in vital_processes().items() if process not in others}
        ended = [name for process, name in seen.items() if has_ended(process)]
        if ended and not started.wait(START_PATIENCE_S):
            end_by_ray(ended_line(ended), folder)


def watch_ray(node: Any, folder: Path) -> None:
    """Watch the processes of a local Ray; where one has ended, end this process.

    Ray itself waits for a minute and then ends it by a page of its own state; an exception would not get through its calls.
    """
    # An orderly end disconnects first.
    while ray.is_initialized() and node is _node():
        ended = [str(name) for name, _ in node.dead_processes()]
        # Asked again: an orderly end may have begun in between.
        if ended and ray.is_initialized():
            node.kill_all_processes(check_alive=False)
            end_by_ray(ended_line(ended), folder)
        time.sleep(WATCHED_EVERY_S)


def watch_head(node: Any) -> None:
    """Watch the head of a joined cluster; say when it is missed, and end this process where it does not come back."""
    host, _, port = node.gcs_address.rpartition(":")
    answered_at, reported = time.monotonic(), False
    while ray.is_initialized() and node is _node():
        if not _refusal(host.strip("[]"), int(port)):
            if reported:
                say(f"the head of the Ray cluster at {node.gcs_address} answers again")
            answered_at, reported = time.monotonic(), False
        missed_s = time.monotonic() - answered_at
        if missed_s > HEAD_PATIENCE_S and ray.is_initialized():
            end_by_ray(f"the head of the Ray cluster at {node.gcs_address} has not answered for {missed_s:.0f} s; {RESUME}")
        if missed_s > HEAD_MISSED_S and not reported:
            reported = True
            say(f"the head of the Ray cluster at {node.gcs_address} does not answer; waiting {HEAD_PATIENCE_S:.0f} s for it")
        time.sleep(WATCHED_EVERY_S)


def vital_processes() -> dict[Any, str]:
    """Return the vital processes of Ray that this process has started, and their names."""
    import psutil

    vital: dict[Any, str] = {}
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if (name := process.name()) in VITAL:
                    vital[process] = name
    return vital


def has_ended(process: Any) -> bool:
    """Return whether a process has ended, be its exit status read or not; Ray reads none while it starts."""
    import psutil

    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ended_line(names: Iterable[str]) -> str:
    """Return the line on Ray's processes that have ended."""
    return f"Ray's process {' and '.join(names)} has ended (killed, or out of memory); {RESUME}"


def say(line: str) -> None:
    """Print a line of this program to stderr."""
    print(f"paras2s: {line}", file=sys.stderr, flush=True)


def end_by_ray(line: str, folder: Path | None = None) -> None:
    """Say why Ray cannot go on, end what is left of a local Ray and remove its folder, and end this process with 2."""
    try:
        say(line)
        if folder:
            end_processes(folder)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(2)
