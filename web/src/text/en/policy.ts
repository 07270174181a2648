export default {
  title: "Policies",
}
