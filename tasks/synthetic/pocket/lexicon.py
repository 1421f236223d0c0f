"""The words of the pocket world, in closed and disjoint lists."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words("""
    Ada Alba Anton Berta Bruno Carla Cora Dario Dina Edgar Elsa Emil Enzo Felix Fiona Flora Gerda Gino
    Greta Hanna Hugo Ida Igor Ines Ivan Jana Jonas Julia Karl Kira Lena Leo Lidia Lotte Lucas Magda
    Marco Mila Mona Nils Nora Olaf Olga Oscar Paula Pedro Petra Quinn Ralf Rita Rosa Rufus Selma Simon
    Stella Tara Theo Tilda Udo Ursula Vera Viktor Wanda Xaver
""")

TOWNS = _words("""
    Ambly Brenholm Calder Dunmore Elvic Farrow Gelding Harrow Istria Jarrow Kelmar Lundby Marlo Norwick
    Ostby Penhall Quarrel Rensby Saltmer Thornby Ulver Vintry Wexley Yarrow
""")

RIVERS = _words("Aven Bourne Clyre Drave Esk Fenn Gryle Hodder Irwell Lune Medway Nidd")

TRADES = _words("""
    baker barber carpenter cook doctor farmer fisher gardener hunter judge mason miller nurse painter
    potter sailor smith tailor teacher weaver
""")

PETS = _words("badger cat crow dog ferret fox goat goose hare owl parrot pony rabbit snake")

DISHES = _words("""
    bread cabbage cake cheese dumplings honey lentils noodles olives omelette pancakes porridge pudding
    salad soup stew
""")

PRODUCTS = _words("""
    barrels boots bricks candles carpets clocks gloves hats ink lace oil paper ribbons ropes salt soap
""")

THINGS = _words("""
    anchor apron arrow axe bag ball banner basket bell belt blanket bottle bowl box broom brush bucket
    button cart chain chair chest chisel coat coin comb compass cup curtain dish doll door
    drum engine fan feather flag flask flute fork globe hammer harp hook horn jar
    jug kettle key kite knife ladder lamp lantern letter lock map mask mat medal mirror mug nail needle
    net pan pencil pillow pipe pitcher plate pot purse quilt rake ring rug saddle saw scarf shawl
    shield shovel shoe spoon stool sword table tent torch towel tray trumpet violin wagon wheel
    whistle
""")

QUALITIES = _words("""
    amber ancient blue brass brave bright broken bronze calm cheap clean clever cold copper crimson
    crooked curved dark dusty early empty fancy fresh gentle golden grand green grey heavy hidden hollow
    humble iron ivory jolly large late little lost loud lucky marble narrow noble odd pale plain proud
    purple quiet rare red rough round royal rusty scarlet sharp silent silver small smooth soft square
    steel strange striped sweet tall thick tiny velvet violet warm white wide wild wooden yellow young
""")

SPOTS = _words("""
    barn bridge castle cellar chapel garden harbour hill inn lighthouse market meadow mill orchard
    palace pier quarry school stable tower well wharf
""")

GOODS = _words("""
    apples beads cards eggs figs grapes lemons marbles nuts pears plums roses shells stamps stones
    tickets
""")

TIMES = _words("morning afternoon evening night spring summer autumn winter")

NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six")
