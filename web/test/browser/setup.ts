import type { TestProject } from "vitest/node"
import { apply, link, startShared } from "./world"

declare module "vitest" {
  interface ProvidedContext {
    /** An unused link, and when it was created. */
    oldLink: { url: string; made: number }
  }
}

/**
 * Alice may do everything in the namespace shop and nothing elsewhere. Another namespace has an
 * object that she must not see.
 */
const world = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: shop}}
- {apiVersion: v1, kind: Namespace, metadata: {name: hidden-vault}}
- apiVersion: rbac.authorization.k8s.io/v1
  kind: RoleBinding
  metadata: {name: alice, namespace: shop}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
  subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: alice}]
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: classified, namespace: hidden-vault}
  data: {plan: classified}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web, namespace: shop, labels: {app: web}}
  spec:
    replicas: 4
    selector: {matchLabels: {app: web}}
    template:
      metadata: {labels: {app: web}}
      spec: {containers: [{name: web, image: "registry.example.com/shop/web:1.2"}]}
- apiVersion: policy.orrery.dev/v1alpha1
  kind: PropagationPolicy
  metadata: {name: web, namespace: shop}
  spec:
    resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: web}]
    placement:
      clusterAffinity: {clusterNames: [oak, pine]}
      replicaScheduling: {replicaSchedulingType: Divided}
- apiVersion: policy.orrery.dev/v1alpha1
  kind: ClusterPropagationPolicy
  metadata: {name: vault}
  spec:
    resourceSelectors: [{apiVersion: v1, kind: ConfigMap, namespace: hidden-vault}]
- apiVersion: policy.orrery.dev/v1alpha1
  kind: OverridePolicy
  metadata: {name: mirror-in-pine, namespace: shop}
  spec:
    resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: web}]
    overrideRules:
    - targetCluster: {clusterNames: [pine]}
      overriders: {imageOverrider: [{component: Registry, operator: replace, value: mirror.example.com}]}
`

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  project.provide("oldLink", { url: await link(), made: Date.now() })
  await apply(world)
  const browser = await startShared()
  project.provide("browser", browser.wsEndpoint())
  return () => browser.close()
}
