import { options, type VNode } from 'preact';
import { visible } from './format';

/** These attributes contain text for users. Others, such as value and href, keep the original text. */
const textAttributes = ['title', 'aria-label', 'placeholder'];

/**
 * showInvisible escapes invisible characters in all texts that Preact renders. Publishers, destinations and upstreams
 * choose many of these texts, such as hub IDs. The data stays unchanged, so links, filters and requests use the originals.
 * An option needs the attribute value, because otherwise its text is its value.
 */
export function showInvisible() {
  const next = options.vnode;
  options.vnode = (vnode) => {
    escapeTexts(vnode);
    next?.(vnode);
  };
}

function escapeTexts(vnode: VNode) {
  // Preact creates a VNode without a type for each text. Its props are the text.
  const node = vnode as { type: unknown; props: unknown };
  if (typeof node.props === 'string') {
    node.props = visible(node.props);
  } else if (typeof node.type === 'string') {
    const props = node.props as Record<string, unknown>;
    for (const name of textAttributes) {
      const text = props[name];
      if (typeof text === 'string') props[name] = visible(text);
    }
  }
}
