import { Link } from "wouter"
import type { Obj } from "../hub/client"
import { objectLink, placementsLink } from "../hub/link"
import { Meter } from "../part/Meter"
import { Facts, Section } from "../part/Page"
import { t } from "../text/text"

export default function Website({ object, cluster }: { object: Obj; cluster: string }) {
  const { spec, status, metadata } = object
  const deployment = { kind: "Deployment", group: "apps", namespace: metadata.namespace ?? "", name: spec.deploymentName }
  const ready = status?.availableReplicas ?? 0
  return (
    <Section title={t("own.site")} actions={<Link href={placementsLink(deployment)}>{t("own.where")}</Link>}>
      <Meter label={t("own.available")} value={ready / (spec.replicas || 1)} text={`${ready}/${spec.replicas}`} tone="good" />
      <Facts
        facts={[
          [t("own.repository"), spec.gitRepo],
          [t("own.branch"), spec.branch || t("own.defaultBranch")],
          [
            t("own.deployment"),
            <Link key="deployment" className="link" href={objectLink({ cluster, ...deployment })}>
              {deployment.name}
            </Link>,
          ],
        ]}
      />
    </Section>
  )
}
