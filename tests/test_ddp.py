"""The layers under DistributedDataParallel: two real processes, gloo, started by torchrun."""

import subprocess
import sys

SCRIPT = """
import torch, torch.distributed as dist
from isolayer import ContextIsotonicLayer, IsotonicLayer

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.shared = torch.nn.Linear(3, 2), IsotonicLayer(2)
        self.curves = ContextIsotonicLayer({"position": 4}, units=2)
    def forward(self, x, position):
        return self.curves(self.shared(self.net(x)), {"position": position})

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model, alone = Model(), None
import copy
alone = copy.deepcopy(model)
parallel = torch.nn.parallel.DistributedDataParallel(model)
x, position = torch.randn(8, 3), torch.randint(0, 4, (8,))
half = slice(4 * rank, 4 * rank + 4)
parallel(x[half], position[half]).square().mean().backward()
alone(x, position).square().mean().backward()
for mine, whole in zip(model.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(mine.grad, whole.grad, atol=1e-6, rtol=1e-5)
dist.destroy_process_group()
open(f"{__file__}.{rank}.done", "w").close()
"""


def test_two_processes_agree_with_one(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert sorted(path.name for path in tmp_path.glob("*.done")) == ["job.py.0.done", "job.py.1.done"]
