"""Downloading the originals with pooch: mirrors in order, hashes checked, and nothing half done is ever left under a file's name."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from fltrust.datasets.dataset import Dataset, Download
from fltrust.errors import InputError

SECONDS_WITHOUT_ANSWER = 30


class ProgressBar(Protocol):
    """What pooch asks of a progress bar."""

    total: int

    def update(self, amount: int) -> None: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...


def download(dataset: Dataset, folder: Path, progress: Callable[[str], ProgressBar] | None) -> list[Path]:
    try:
        import pooch
    except ImportError as error:
        raise InputError(f"downloading needs the package pooch: pip install pooch, or put {dataset.name}'s files into {folder}") from error
    pooch.get_logger().setLevel("WARNING")  # the progress bar says the rest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_download(file, folder, progress) for file in dataset.downloads]
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error


def _download(file: Download, folder: Path, progress: Callable[[str], ProgressBar] | None) -> Path:
    """A file that is there and is the original stays; one that is there and is not is replaced once the original has arrived."""
    import pooch
    from requests.exceptions import RequestException

    failures = []
    bar = progress(file.file) if progress else None
    for url in file.urls:
        downloader = pooch.HTTPDownloader(progressbar=bar or False, chunk_size=2**16, timeout=SECONDS_WITHOUT_ANSWER)
        try:
            path = Path(pooch.retrieve(url, file.known_hash, file.file, folder, downloader=downloader))
        except (RequestException, ValueError) as error:
            failures.append(f"{url} ({_reason(error)})")
            if bar:
                bar.reset()
            continue
        path.chmod(0o644)  # pooch's temporary files are for one user only; a data folder may be shared
        return path
    raise InputError(f"{file.file} could not be downloaded; tried {', '.join(failures)}; is there a network? Or put it into {folder}")


def _reason(error: Exception) -> str:
    from requests.exceptions import ChunkedEncodingError, HTTPError, RequestException, Timeout

    if isinstance(error, HTTPError) and error.response is not None:
        return f"answered {error.response.status_code}"
    if isinstance(error, Timeout):
        return "no answer"
    if isinstance(error, ChunkedEncodingError):
        return "broke off"
    return "no connection" if isinstance(error, RequestException) else "sent other bytes than the original's"
