"""Known causes of a dead container: what the log says, what it means, what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signature:
    """A cause that can be recognised by one line of the log."""

    name: str
    pattern: str
    meaning: str
    hint: str
    is_certain: bool = True
    """False for words that also occur in harmless tracebacks; those need the fatal one."""


SIGNATURES = (
    Signature(
        "wrong_image",
        r"No module named '?sparkdeploy_vllm|/opt/venv/bin/python\W.* no such file or directory",
        "the image was not made by sparkdeploy: it has no guard to start with",
        "start it with `sparkdeploy up`; an image of your own goes in as `--set image=sha256:...`",
    ),
    Signature(
        "torch_mismatch",
        r"undefined symbol: .*(?:cuda|c10|torch|at\d)|libtorch_cuda\.so: cannot open",
        "the image holds two builds of torch, or the CPU build instead of the CUDA one",
        "rebuild the engine from its lock: `sparkdeploy image rm` and `sparkdeploy up`",
    ),
    Signature(
        "ray_memory",
        r"ray\.exceptions\.OutOfMemoryError|node running low on memory|ray::.*was killed due to",
        "Ray's own memory monitor killed a worker; it does not know unified memory",
        "use cluster.backend native, or set RAY_memory_monitor_refresh_ms=0 in serve.env",
    ),
    Signature(
        "plugin_missing",
        r"Unknown quantization method: ?'?spark-hybrid",
        "this image's vLLM does not have the sparkdeploy plugin",
        "start it with `sparkdeploy up`, which builds the plugin into the image",
    ),
    Signature(
        "plugin_failed",
        r"Failed to load plugin:? sparkdeploy",
        "the sparkdeploy plugin did not load into this vLLM",
        "rebuild the plugin stage; its self-check names the hook that does not fit",
    ),
    Signature(
        "fp8_count",
        r"sparkdeploy: the checkpoint expects \d+ FP8 layers",
        "the plugin converted another number of layers than the checkpoint's manifest promises",
        "rebuild the overlay: `sparkdeploy up --prepare`; if it stays, model and recipe differ",
    ),
    Signature(
        "int8_head",
        r"sparkdeploy: the checkpoint asks for an INT8 LM head",
        "this vLLM never asked the plugin for the INT8 head",
        "use engine cuda-0.25 or newer, or `--set checkpoint.lm_head=bf16`",
    ),
    Signature(
        "fp8_not_dispatched",
        r"weight_scale_inv.*not found in params_dict|Parameter .*weight_scale_inv.* not found",
        "FP8 weights reached layers that would read them as something else; text would be garbage",
        "serve this checkpoint with a sparkdeploy recipe, whose plugin reads it",
    ),
    Signature(
        "missing_tensor",
        r"There is no module or parameter named|weights were not initialized from checkpoint",
        "the checkpoint's tensors are not those this model class expects",
        "check the recipe's model and revision; another vLLM version may name layers differently",
    ),
    Signature(
        "cuda_oom",
        r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory"
        r"|cudaErrorMemoryAllocation|Free memory on device .* less than desired",
        "the GPU's memory (on a Spark: the machine's) did not suffice",
        "stop other GPU users, or lower serve.gpu_memory_utilization or serve.max_model_len",
    ),
    Signature(
        "kv_cache_too_small",
        r"No available memory for the cache blocks|larger than the (?:maximum number of tokens|"
        r"available KV cache memory)|KV cache is needed, which is larger",
        "no room is left for the KV cache of one request of the recipe's length",
        "lower serve.max_model_len, or raise serve.gpu_memory_utilization if memory is free",
    ),
    Signature(
        "host_oom",
        r"Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: can't allocate",
        "the machine ran out of memory",
        "stop other programs, or lower serve.gpu_memory_utilization",
    ),
    Signature(
        "broken_checkpoint",
        r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer"
        r"|InvalidHeaderDeserialization",
        "a weight file is truncated, or is no safetensors file",
        "`sparkdeploy checkpoint verify DIR --deep` names it; then pull it again",
    ),
    Signature(
        "not_downloaded",
        r"LocalEntryNotFoundError|outgoing traffic has been disabled|OfflineModeIsEnabled"
        r"|couldn't connect to .* and couldn't find (?:it|them) in the cached files",
        "a file of the model is not here, and the container may not fetch it",
        "`sparkdeploy checkpoint pull` completes the download",
    ),
    Signature(
        "gpu_fault",
        r"an illegal memory access was encountered|unspecified launch failure"
        r"|CUDA error: device-side assert|uncorrectable (?:ECC|NVLink) error",
        "a kernel failed on the GPU; what comes after it in the log is only its echo",
        "try `--set serve.enforce_eager=true`; if it stays, report it with `sparkdeploy diagnose`",
    ),
    Signature(
        "kernel_image",
        r"no kernel image is available",
        "this vLLM build has no code for this GPU's compute capability",
        "use an engine built for it: cuda-0.25 or newer covers SM121",
    ),
    Signature(
        "driver",
        r"CUDA driver version is insufficient|libcuda\.so\.1: cannot open"
        r"|NVIDIA driver on your system is too old|Found no NVIDIA driver"
        r"|No CUDA GPUs are available",
        "the container does not reach a GPU driver, or the driver is too old for this CUDA",
        "`nvidia-smi` on the host must work; then `sudo nvidia-ctk runtime configure"
        " --runtime=docker && sudo systemctl restart docker`",
    ),
    Signature(
        "nvidia_runtime",
        r"could not select device driver|nvidia-container-cli:|unknown or invalid runtime name"
        r"|nvidia-container-runtime.*not found",
        "Docker has no working NVIDIA runtime",
        "install nvidia-container-toolkit, then `sudo nvidia-ctk runtime configure"
        " --runtime=docker && sudo systemctl restart docker`",
    ),
    Signature(
        "port_in_use",
        r"(?i)address already in use",
        "another program listens on the port",
        "stop it, or choose another port with `--set serve.port=8001`",
    ),
    Signature(
        "disk_full",
        r"No space left on device|Disk quota exceeded",
        "a disk is full",
        "free space in Docker's data root and sparkdeploy's cache folder: `df -h`",
    ),
    Signature(
        "tokenizer",
        r"Tokenizer class \S+ does not exist|Couldn't instantiate the backend tokenizer",
        "the image's transformers does not know this model's tokenizer",
        "use an engine with transformers 5: cuda-0.25 or newer",
    ),
    Signature(
        "architecture",
        r"Model architectures? .* (?:are|is) not supported|does not recognize this architecture",
        "this vLLM does not know the model's architecture",
        "use a newer engine; `sparkdeploy list` names them",
    ),
    Signature(
        "turboquant",
        r"Unknown TurboQuant cache dtype|TurboQuant .*(?:is not supported|not yet supported)"
        r"|turboquant.* not supported for hybrid",
        "this vLLM cannot hold this model's KV cache in TurboQuant's format",
        "`--set serve.kv_cache_dtype=auto`, or the engine that the recipe names",
    ),
    Signature(
        "compiler",
        r"nvcc.{0,20}not found|Could not find nvcc|ninja: build stopped"
        r"|Failed to find C compiler|fatal error: Python\.h: No such file",
        "a kernel had to be compiled and the image has no working compiler for it",
        "rebuild the image with `sparkdeploy up`; an image of your own needs gcc, nvcc and ninja",
    ),
    Signature(
        "open_files",
        r"Too many open files",
        "a process may not open more files",
        "raise the limit of the Docker service: LimitNOFILE=1048576 in its unit",
    ),
    Signature(
        "user_unknown",
        r"getpwuid\(\): uid not found",
        "a program asked for the name of the container's user, and USER is not set",
        "set USER in serve.env; sparkdeploy does so by itself, so report it",
    ),
    Signature(
        "nccl",
        r"NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclRemoteError|DistStoreError"
        r"|Connection closed by peer.*gloo",
        "the processes or nodes could not talk to each other",
        "check the fabric's interfaces, addresses and MTU on both machines",
    ),
    Signature(
        "arguments",
        r"error: (?:unrecognized arguments|argument |the following arguments are required)",
        "vLLM does not accept one of the flags",
        "correct serve.extra_args, or choose an engine that has the flag",
    ),
    Signature(
        "command_missing",
        r'^sparkdeploy-guard: \{"event": "cannot_run"'
        r"|exec: .*executable file not found|exec format error",
        "the image does not hold the program to run, or holds it for another processor",
        "rebuild the image: `sparkdeploy up --prepare`",
    ),
    Signature(
        "key_file",
        r'^sparkdeploy-guard: \{"event": "refused"',
        "the guard did not accept a file or a value it was started with",
        "the line says which file or value; `sparkdeploy up` makes the key file anew",
    ),
    Signature(
        "read_only",
        r"Read-only file system",
        "the program wrote outside its cache folder; the container's root is read-only",
        "the path in the line belongs under the cache folder: set its variable in serve.env",
        is_certain=False,
    ),
    Signature(
        "permission",
        r"Permission denied|PermissionError",
        "the container's user may not read or write a file",
        "make the model's files readable (`chmod -R a+rX FOLDER`) and the cache folder owned by"
        " the model folder's owner",
        is_certain=False,
    ),
    Signature(
        "missing_file",
        r"No such file or directory|FileNotFoundError",
        "a file is missing, or its folder is not readable for the container's user",
        "complete the download; a mode 0600 file of another user looks missing too",
        is_certain=False,
    ),
    Signature(
        "unsupported",
        r"(?i)\bnot supported\b|\bnot implemented\b|NotImplementedError|is incompatible with",
        "this combination of settings does not exist in this vLLM",
        "the line names it; change it with `--set`, or choose another engine",
        is_certain=False,
    ),
)
