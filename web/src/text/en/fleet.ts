export default {
  title: "Fleet",
}
