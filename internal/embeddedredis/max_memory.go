package embeddedredis

import "github.com/KimMachineGun/automemlimit/memlimit"

// DefaultMaxMemory returns half of the memory of the machine, or of the memory limit of its cgroup, in bytes. If
// neither is known, it returns 0, which means no limit.
func DefaultMaxMemory() int64 {
	machine, err := memlimit.FromSystem()
	if err != nil {
		machine = 0
	}
	if limit, err := memlimit.FromCgroup(); err == nil && limit > 0 && (machine == 0 || limit < machine) {
		machine = limit
	}
	return int64(machine / 2)
}
