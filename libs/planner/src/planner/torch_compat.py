"""What this package uses of torch that torch does not promise to keep: all of it, in one place."""

from torch._subclasses.fake_tensor import unset_fake_temporarily
