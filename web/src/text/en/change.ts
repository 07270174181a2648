export default {
  title: "Changes",
}
