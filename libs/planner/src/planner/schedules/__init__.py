"""Schedules of loop kernels: what triton_emit proposes, what is measured, what was chosen."""
