package embeddedredis

import "github.com/KimMachineGun/automemlimit/memlimit"

// DefaultMaxMemory returns half of the memory of the machine, or of the memory limit of its cgroup, in bytes. It returns
// 0, which is no limit, if neither is known.
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
