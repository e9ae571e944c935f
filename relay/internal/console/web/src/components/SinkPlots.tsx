import { number, rate } from '../format';
import type { SinkSeries } from '../series';
import { Plot } from './Plot';

export function ThroughputPlot({ series }: { series: SinkSeries }) {
  return (
    <Plot
      title="Attempts per second"
      format={rate}
      lines={[
        { series, name: 'delivered', label: 'delivered', color: 'good' },
        { series, name: 'failed', label: 'failed', color: 'bad' },
      ]}
    />
  );
}

export function BacklogPlot({ series }: { series: SinkSeries }) {
  return (
    <Plot
      title="Backlog"
      format={number}
      lines={[
        { series, name: 'waiting', label: 'waiting', color: 'accent' },
        { series, name: 'retrying', label: 'retrying', color: 'warn' },
        { series, name: 'dead', label: 'dead', color: 'bad' },
      ]}
    />
  );
}
