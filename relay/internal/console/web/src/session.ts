import { createContext } from 'preact';
import { useContext } from 'preact/hooks';
import type { Role, Session } from './api';

export const SessionContext = createContext<Session | null>(null);

const roles: Role[] = ['viewer', 'operator', 'admin'];

/** useRole reports whether the operator who is signed in has a role, or one that includes it. */
export function useRole(role: Role): boolean {
  const session = useContext(SessionContext);
  return !!session && roles.indexOf(session.role) >= roles.indexOf(role);
}
