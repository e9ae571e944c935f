package main

import "context"

const quotaRounds = 3

// measureQuotas compares the CPU time of a publish request with and without quotas.
func measureQuotas(ctx context.Context, r *rig) ([]row, error) {
	unlimited := *r
	unlimited.env = []string{"HUBRELAY_QUOTAS__KEY__NOTIFICATIONS=0", "HUBRELAY_QUOTAS__KEY__BYTES=0"}
	var added, bases []float64
	for i := range quotaRounds {
		cost := map[*rig]float64{}
		for _, each := range alternate(i, r, &unlimited) {
			var err error
			if cost[each], err = each.costOfPublish(ctx, benchKey); err != nil {
				return nil, err
			}
		}
		added, bases = append(added, cost[r]-cost[&unlimited]), append(bases, cost[&unlimited])
	}
	return []row{
		newRow("quotas, CPU added to a publish request", max(0, median(added)), "us CPU",
			"publishing one, without quotas",
			median(bases)).atMost(3),
	}, nil
}

// costOfPublish returns the CPU time of a request with one notification and a credential, in microseconds.
func (r *rig) costOfPublish(ctx context.Context, credential string) (cost float64, err error) {
	err = r.runWithDaemon(ctx, "", func(d *daemon) error {
		request := newRequest(path, credential, "application/json", []byte(event))
		var requests int64
		cpu, err := measureCPU(d.cmd.Process.Pid, func() error {
			requests, _, err = runForAWhile(ctx, singleConns, func() (func() error, func(), error) {
				c, err := dialHTTP(d.listen)
				if err != nil {
					return nil, nil, err
				}
				return func() error { return c.postRequest(request) }, c.close, nil
			})
			return err
		})
		cost = float64(cpu.Nanoseconds()) / 1000 / float64(requests)
		return err
	})
	return cost, err
}
