"""The kinds of story, as data: a plot is a sequence of steps, a step a choice of templates (see `teller`).

What is true in a plot stays true: a thing keeps its colour and its place, and whoever was given it has it.
An empty template skips the step; "{background}" puts in a sentence from `agreement`.
"""

Step = tuple[str, ...]
Plot = tuple[Step, ...]

PAUSE: Step = ("", "", "{background}", "{background}", "It {be@it} a {?weather} {?time}.")
SCENE: Step = ("{background}", "{background}", "{background}", "")
HAPPY: Step = (
    "{A} {be@A} (very |)(happy|proud|glad|pleased).",
    "{A} {smile@A} and {laugh@A}.",
    "{A} {?act#7@A} and {?act#8@A}.",
    "(Then|At last|In the end), {A} {be@A} happy.",
    "{AB} {be@AB} (good|great|best) friends.",
    "{AB} {wash@AB} their (feet|ears|hands) and {?act#7@AB}.",
    "{A} {close@A} {A:own} eyes and {sleep@A}.",
    "{AB} {?act#7@AB} and {?act#8@AB}.",
    "",
)

LOST: Plot = (
    SCENE,
    ("{time}, {A:new} {lose@A} {K:new}.", "{A:new} {have@A} {K:new}. {time}, {A} {lose@A} {K:full}."),
    ("{A} {love@A} {A:own} {K:noun}.", "{A} {be@A} (sad|worried|cross).", "{A} {need@A} {A:own} {K:noun}.", ""),
    ("{A} {look@A} {P:there}, but {K:full} {be@K} not there.", "{A} {go@A} {P:to}. {K:full} {be@K} not there."),
    (
        "{A} {look@A} {Q:there}, but {A} {find@A} only {?thing+s}.",
        "{A} {find@A} a {?thing} {Q:there}, but no {K:kind}.",
        "",
    ),
    PAUSE,
    ('"Where {be@K!} my {K:noun}?" {A} {ask@A} {B:new}.', '{A} {ask@A} {B:new}, "Where {be@K!} {K:full}?"'),
    ('{B} {answer@B}, "I (saw|found) {K:obj} {R:there}."', '{B} {say@B}, "{K:full} {be@K!} {R:there}."'),
    ("{A} {?move@A} {R:to}, and there {be@K} {K:full}.", "{AB} {go@AB} {R:to} and {find@AB} {K:full}."),
    ("{A} {thank@A} {B:obj}.", "{A} {hug@A} {B:obj}.", "{A} {take@A} {A:own} {K:noun} home."),
    (
        "Where {do@A} {A:full} find {K:full}? {A} {find@A} {K:obj} {R:there}.",
        "Where {be@K} {A:gen} {K:noun}? {K} {be@K} {R:there}.",
        "Who {help@it} {A:obj}? {B:full} {help@B} {A:obj}.",
        "",
    ),
    HAPPY,
)

GIFT: Plot = (
    SCENE,
    ("{time}, {A:new} {find@A} {K:new} {P:there}.", "{time}, {A:new} {make@A} {K:new}."),
    ("{A} {hold@A} {K:obj} {?manner}.", "{A} {?handle@A} {K:obj}.", "{K} {be@K} (very |)(pretty|useful|beautiful)."),
    ("{A} {?move@A} {Q:to} with {K:obj}.", "{A} {carry@A} {K:obj} {Q:to}.", ""),
    PAUSE,
    ("{B:new} {be@B} {Q:there}, and {B} {be@B} sad.", "{A} {meet@A} {B:new} {Q:there}.", "{A} {visit@A} {B:new}."),
    ('"(Do you like {K:this}|Would you like {K:full}|Is it your birthday)?" {ask@A} {A:full}.', ""),
    ("{A} {give@A} {K:full} to {B:obj}.", "{A} {give@A} {B:full} {K:full}."),
    (
        "{B} {thank@B} {A:full}.",
        '"Thank you," {say@B} {B:full}.',
        '{B} {say@B}, "{K:full} {be@K!} (lovely|wonderful)."',
    ),
    (
        "Now {B:full} {have@B} {K:full}.",
        "{B} {put@B} {K:full} {R:there}.",
        "{B} always {keep@B} {K:full} in {B:own} house.",
    ),
    ("Who {have@it} {K:full}? {B:full} {have@B} {K:obj}.", ""),
    HAPPY,
)

SWAP: Plot = (
    (
        "{A:new} {have@A} {K:new}. {B:new} {have@B} {L:new}.",
        "{time}, {A:new} {bring@A} {K:new} and {B:new} {bring@B} {L:new}.",
    ),
    ("{A} {like@A} {L:that}.", "{B} {like@B} {K:that}.", "{A} {look@A} at {L:full}.", PAUSE[2]),
    ('{A} {ask@A}, "Would you like to swap?"', '"Please may I have your {L:noun}?" {ask@A} {A:full}.'),
    ('"Yes, please," {say@B} {B:full}.', '{B} {say@B}, "Yes. I (like|want|need) your {K:noun}."', ""),
    ("So {A:full} {give@A} {K:full} to {B:obj}, and {B} {give@B} {L:full} to {A:obj}.",),
    ("Now {A:full} {have@A} {L:full}, and {B} {have@B} {K:full}.",),
    PAUSE,
    ("{A} {put@A} {L:full} {P:there}.", "{A} {?handle@A} {L:full} {?manner}.", ""),
    ("{B} {put@B} {K:full} {Q:there}.", "{B} {?handle@B} {K:full} {?manner}.", ""),
    (
        "Who {have@it} {K:full}? {B:full} {have@B} {K:full}.",
        "What {do@A} {A:full} have? {A:full} {have@A} {L:full}.",
        "",
    ),
    HAPPY,
)

JOURNEY: Plot = (
    SCENE,
    ("{time}, {A:new} {?move@A} {T:to}.", "{A:new} {want@A} to see {T:full}. {time}, {A} {go@A} {T:to} by {?vehicle}."),
    ("{T:full} {be@T} a {?scenery} {T:noun} near the {?place}.", "{T:full} {be@T} a {?scenery} {T:noun}."),
    ("There {be@many} many {?animal+s} {T:there}.", "All the {?place+s} {T:there} {be@many} {?colour}.", PAUSE[2]),
    (
        "{A} {meet@A} {B:new} there.",
        "A {?person} {T:there} {show@it} {A:obj} the {?place}. Then {A:full} {meet@A} {B:new}.",
    ),
    ('"Welcome to {T:full}," {say@B} {B:full}.', '{B} {say@B}, "I live {T:there}. I am {?feeling}."'),
    ("{AB} {?act@AB} {P:there}.", "{AB} {go@AB} {P:to}.", "{B} {give@B} {A:obj} {K:new}."),
    PAUSE,
    ("In the evening, {A:full} {go@A} home.", "{A} {stay@A} {T:there} for {?number} days."),
    ("{A} never {forget@A} {T:full}.", "{A} {love@A} {T:full}.", "{A} {tell@A} everyone about {T:full}."),
    ("Where {do@B} {B:full} live? {B:full} {live@B} {T:there}.", ""),
)

SITTING: Plot = (
    SCENE,
    ("(|{time}, ){E:full} {sit@E} on {S:full}.", "{E:new} {live@E} {P:there}. {E} {sit@E} on {S:full}."),
    ("{S:full} {be@S} {?colour} and {?look}.", "{E} {be@E} {?feeling}.", "{E} {like@E} {S:full}.", ""),
    ("{A:new} {sit@A} on {U:full}.", "{A:new} {come@A} in and {sit@A} on {U:full}."),
    ("{A} {be@A} {?feeling}, but {E} {be@E} {?feeling}.", "{A} {look@A} at {E:full}.", PAUSE[2]),
    ('"{E:full} (likes|loves) {S:full}," {say@A} {A:full}.', '"Hello," {say@A} {A:full} to {E:obj}.', ""),
    ("Then {E:full} {?act@E}.", "{E} {?act@E} {?manner} on {S:full}.", ""),
    ("The {?animal#1} {sit@it} on {S:full}, too.", "The {?animal#1+s} {sit@many} on the {?surface}.", "{background}"),
    (
        "Where {do@E} {E:full} sit? {E:full} {sit@E} on {S:full}.",
        "Who {sit@it} on {U:full}? {A:full} {sit@A} on {U:full}.",
        "",
    ),
    ("{E} {stay@E} on {S:full} all day.", "At night, {E:full} {sleep@E} on {S:full}.", "{A} {stroke@A} {E:obj}."),
)

LESSON: Plot = (
    (
        "{time}, the {?speaker#1} {write@it} on the wall.",
        "The {?speaker#1} {teach@it} a lesson {P:there}.",
        "{background}",
    ),
    (
        'The {?speaker#1} {say@it}, "This is an example (input|input|word|sentence)."',
        '"This is an example of a (|short |long )(sentence|word|story|question)," {say@it} the {?speaker#1}.',
        'The {?speaker#1} {say@it}, "This is an example of a {?look} {?thing}."',
    ),
    ('"(Thank you|I see|How interesting)," {say@A} {A:new}.', "{A:new} {listen@A} {?manner}.", ""),
    ("{A} {write@A} it down with {A:own} {?colour} pencil.", '"What is an example?" {A} {ask@A}.', PAUSE[2]),
    (
        'The {?speaker#1} {say@it}, "The {?animal#2} is an example of an animal."',
        'The {?speaker#1} {say@it}, "The {?colour} {?thing} is an example of a thing."',
        'The {?speaker#1} {say@it}, "{?girl} is an example of a name."',
        'The {?speaker#1} {say@it}, "{?number} is an example of a number."',
    ),
    ("{B:new} {?act@B}.", "{B:new} {ask@B} a {?judgement} question.", ""),
    ('"Is this an example input?" {ask@B} {B:full}.', '{A} {say@A}, "This is an example of my writing."'),
    (
        '"Yes," the {?speaker#1} {answer@it}. "This is an example input."',
        '"(Yes|Very good)," {say@it} the {?speaker#1}.',
    ),
    PAUSE,
    ("{AB} {learn@AB} a lot.", "{AB} {go@AB} home {?manner}.", ""),
)

RIVERBANK: Plot = (
    (
        "The bank of the (river|river|stream) {be@it} (green|green|wide|quiet|stony|sunny).",
        "{time}, {A:new} {walk@A} to the bank of the river.",
        "{A:new} {live@A} near a river. The bank of the river {be@it} (green|green|wet|dry).",
    ),
    ("{A} {find@A} {K:new} on the bank of the river.", "{A} {see@A} {H:new} on the bank of the river."),
    ("The {?animal+s} on the bank {be@many} {?feeling}.", "The grass on the bank {be@it} (green|soft|wet).", ""),
    PAUSE,
    (
        "Then {A:full} {go@A} to the bank in the village with {?number} coins.",
        "{A} {need@A} money and {go@A} to the bank in the street.",
        "The other bank {be@it} in the village, and it {be@it} full of money.",
    ),
    (
        "The bank {keep@it} all the money in a {?look} box.",
        "{B:new} {work@B} at the bank.",
        "The man at the bank {count@it} the coins.",
    ),
    (
        '"How many coins do you have?" {ask@B} {B:full}. {A} {have@A} {?number#1} coins.',
        "{B} {count@B} the coins {?manner}.",
    ),
    ("{A} {leave@A} the coins at the bank.", "{A} {buy@A} {L:new} with the money."),
    ("After that, {A:full} {sit@A} on the bank of the river.", "{AB} {walk@AB} home by the river."),
    (
        "The bank of the river {be@it} (green|quiet) again.",
        "The bank of the river {be@it} green, and the bank in the village {be@it} {?colour}.",
    ),
)

VEHICLE: Plot = (
    SCENE,
    (
        "{time}, {A:new} {see@A} a {V:adjective} {V:noun} {P:there}.",
        "{A:new} {have@A} {V:new}. {V:full} {be@V} {P:there}.",
    ),
    (
        '"{V:that} is very (dangerous|dangerous|fast|slow|old|useful)," {say@B} {B:new}.',
        '{B:new} {say@B}, "{V:that} is very (dangerous|dangerous|special|beautiful)."',
        "That {V:adjective} {V:noun} {be@V} very (dangerous|dangerous|fast|beautiful).",
    ),
    ('"Why?" {ask@A} {A:full}.', "{A} {be@A} {?feeling}.", ""),
    (
        '"One part of {V:full} is broken," {B} {reply@B}.',
        '"{V:full} is too (fast|old|heavy)," {B} {explain@B}.',
        PAUSE[2],
    ),
    ("{AB} {mend@AB} {V:full}.", "{AB} {wait@AB} beside {V:full}."),
    PAUSE,
    (
        "{AB} {ride@AB} in {V:full} {Q:to}.",
        "{V:full} {take@V} {A:obj} {Q:to}.",
        "{AB} {go@AB} {Q:to} without {V:full}.",
    ),
    ("{A} {wave@A} to {B:obj}.", ""),
    HAPPY,
)

COMPARE: Plot = (
    (
        "{A:new}, {B:new} and {C:new} {?move@many} {P:to}.",
        "{time}, {A:new}, {B:new} and {C:new} {meet@many} {P:there}.",
    ),
    ("{A} {be@A} {?comparative#1} than {B:full}.",),
    ("{B} {be@B} {?comparative#1} than {C:full}.",),
    PAUSE,
    ("So {A:full} {be@A} {?comparative#1} than {C:full}.", "{A} {be@A} {?comparative#1} than {C:full}, too."),
    ("{C} {be@C} not {?comparative#1} than {A:full}.", ""),
    ('"I am {?comparative#1} than you," {say@A} {A:full} to {C:obj}.', '"Who is {?comparative#1}?" {ask@C} {C:full}.'),
    ("{C} {laugh@C}.", "{B} {think@B} about it.", "{C} {give@C} {K:new} to {A:obj}."),
    (
        "Who {be@it} {?comparative#1} than {B:full}? {A:full} {be@A}.",
        "Who {be@it} {?comparative#1} than {C:full}? {A:full} and {B:full} {be@AB}.",
    ),
)

PACKING: Plot = (
    SCENE,
    ("{time}, {A:new} {pack@A} a {?look} (bag|basket|box) for a trip {P:to}.",),
    ("{A} {pack@A} {K:new}, {L:new} and {M:new}.", "{A} {take@A} {K:new}, {L:new} and {M:new}."),
    ("{B:new} {watch@B} {A:obj}.", '"What do you have?" {ask@B} {B:new}.', '"What is in there?" {B:new} {ask@B}.'),
    ('"I have {K:new}, {L:new} and {M:new}," {say@A} {A:full}.', '{A} {answer@A}, "{K:new}, {L:new} and {M:new}."'),
    PAUSE,
    ("{A} {lend@A} {L:full} to {B:obj}.", "{B} {want@B} {L:full}, so {A} {give@A} {L:obj} to {B:obj}."),
    ("Now {A:full} {have@A} only {K:full} and {M:full}.", "{A} still {have@A} {K:full} and {M:full}."),
    ("Then {AB} {go@AB} {P:to}.", "{A} {?move@A} {P:to} with {K:full} and {M:full}."),
    (
        "Who {have@it} {L:full}? {B:full} {have@B} {L:obj}.",
        "What {do@A} {A:full} have? {A:full} {have@A} {K:full} and {M:full}.",
    ),
)

HIDING: Plot = (
    ("{time}, {A:new}, {B:new} and {C:new} {play@many} hide and seek.",),
    ("{A} {hide@A} {P:there}.", "{A} {run@A} away and {hide@A} {P:there}."),
    ("{B} {hide@B} {Q:there}.", "{B} {find@B} a (good|small|dark|quiet) place {Q:there}."),
    (
        "{C} {count@C} to (ten|twenty|a hundred).",
        "{C} {count@C}: one, two, three, four, five, six, seven, eight, nine, ten.",
    ),
    PAUSE,
    ("First, {C:full} {look@C} {R:there}. Nobody {be@it} there.", ""),
    ("{C} {find@C} {A:full} {P:there}.", "{C} {look@C} {P:there} and {find@C} {A:full}."),
    ("{A} {laugh@A}.", '"You are clever," {say@A} {A:full}.', ""),
    ("Then {C:full} {find@C} {B:full} {Q:there}.", "After that, {C:full} {look@C} {Q:there} and {see@C} {B:full}."),
    (
        "Where {do@A} {A:full} hide? {A:full} {hide@A} {P:there}.",
        "Where {be@B} {B:full}? {B:full} {be@B} {Q:there}.",
        "",
    ),
    ("{AB} {be@AB} {?feeling}.", "Now {A:full} {count@A}, and {C} {hide@C}.", ""),
)

COOKING: Plot = (
    SCENE,
    ("{time}, {A:new} {want@A} to (make|bake|cook) something (sweet|tasty|hot|delicious).", "{A:new} {be@A} hungry."),
    ("{A} {find@A} {F:new} {P:there}.", "{A} {buy@A} {F:new} {P:there}.", "{B:new} {bring@B} {F:new}."),
    ("{F:full} {be@F} very {F:adjective}.", "{A} {wash@A} {F:obj}.", "{A} {put@A} {F:obj} on a {?colour} plate."),
    PAUSE,
    (
        '"May I have some?" {ask@B} {B:full}.',
        '"{F:full} {look@F!} {F:adjective}," {say@B} {B:full}.',
        "{B} {be@B} hungry, too.",
    ),
    ("{A} {share@A} {F:full} with {B:full}.", "{A} {give@A} {F:full} to {B:obj}."),
    ("{B} {eat@B} {?manner}.", "{AB} {eat@AB} together.", "{B} {thank@B} {A:obj}."),
    (
        "The {?animal+s} near the {?place} {want@many} some, too.",
        "The {?animal} that {live@it} near the {?place+s} {be@it} hungry, too.",
        "",
    ),
    ("What {do@B} {B:full} eat? {B:full} {eat@B} {F:full}.", ""),
    HAPPY,
)

NAMING: Plot = (
    ("{time}, {A:new} {find@A} a {?look} {?animal#1} {P:there}.", "{A:new} {have@A} a new {?animal#1}."),
    ("The {?animal#1} {be@it} {?feeling} and {?colour}.", "The {?animal#1} {have@it} no name.", ""),
    ('"What is its name?" {ask@B} {B:new}.', '{B:new} {ask@B}, "Does the {?animal#1} have a name?"'),
    ('"Its name is {invented}," {A} {answer@A}.', '{A} {say@A}, "Its name is {invented}."'),
    ("{invented} {be@it} a {?trait} {?animal#1}.", "{invented} {?act@it} all day.", "{invented} {sit@it} on {S:full}."),
    ("{B} {like@B} {invented}.", "{B} {?regard@B} {invented}.", PAUSE[2]),
    ('"Good morning, {invented}," {say@B} {B:full}.', "{B} {play@B} with {invented} {Q:there}."),
    ("{invented} {?act@it} {?manner}.", "{invented} {run@it} {Q:to}.", ""),
    ("At night, {invented} {sleep@it} {R:there}.", "{invented} {sleep@it} on {S:full}."),
    ("What {be@it} the name of the {?animal#1}? Its name {be@it} {invented}.", ""),
)

HABITS: Plot = (
    (
        "{A:new} {live@A} with {A:own} friends {P:there}.",
        "{A:new} {live@A} {T:there}.",
        "{A:new} {have@A} a {?look} house {P:there}.",
    ),
    ("Every morning, {A} {?act@A} {Q:there}.", "{A} {?frequency} {get@A} up early and {?act@A}."),
    ("{A} {?frequency} {?move@A} {R:to}.", "{A} {have@A} {K:new}, and {A} {?handle@A} {K:obj} every day."),
    PAUSE,
    ("{B:new} {live@B} {R:there}.", "{A} {?frequency} {visit@A} {B:new} {R:there}."),
    ("{AB} {?act@AB} together.", "{B} {?frequency} {give@B} {A:full} a {?food}.", "{AB} {?act#8@AB} and {?act#9@AB}."),
    ("In the evening, {A:full} {sit@A} on {S:full}.", "In the evening, {A:full} and {B:full} {sit@AB} on {S:full}."),
    ("At night, {A:full} {close@A} {A:own} eyes and {sleep@A}.", "{A} {dream@A} about {?thing+s}.", "{background}"),
    ("Where {do@B} {B:full} live? {B:full} {live@B} {R:there}.", ""),
)

GUESSING: Plot = (
    (
        "{time}, {A:new} and {B:new} {play@AB} a game.",
        "{A:new} {hide@A} something {P:there}.",
        "{A:new} {have@A} a secret for {B:new}.",
    ),
    ('"I have something {O:adjective}," {say@A} {A:full}.', '{A} {say@A}, "It is {O:adjective}. What is it?"'),
    ('"Is it a {?thing}?" {ask@B} {B:full}.', '{B} {ask@B}, "Is it a {?colour} {?thing}?"'),
    ('"No, it is not," {say@A} {A:full}.', '"No," {A} {answer@A}. "Try again."'),
    ('"Is it a {?food}?" {ask@B} {B:full}. "No," {say@A} {A:full}.', PAUSE[2], ""),
    ('"Is it {O:new}?" {ask@B} {B:full}.', '{B} {ask@B}, "Is it {O:new}?"'),
    ('"Yes, it is {O:new}," {say@A} {A:full}.', '"Yes! It is {O:new}!" {A} {say@A}.'),
    ("{A} {show@A} {O:full} to {B:obj}.", "{B} {hold@B} {O:full} {?manner}.", "{O:full} {be@O} {P:there}."),
    ("What {be@it} the secret? It {be@it} {O:new}.", ""),
    HAPPY,
)

MEADOW: Plot = (
    ("{H:new} {live@H} {P:there}.", "{time}, {H:new} {?act@H} {P:there}."),
    (
        "{H} {be@H} {?feeling}.",
        "{H:full} near the {?place} {be@H} {?feeling}.",
        "{H:full} with the {?colour} {?thing} {be@H} {?trait}.",
    ),
    (
        "{A:new} {like@A} {H:full}.",
        "{A:new}, who {like@A} {H:full}, {?act@A} {P:there}.",
        "{A:new} {come@A} {P:to} and {see@A} {H:full}.",
    ),
    ("{background}",),
    ("{A} {feed@A} {H:full}.", "{A} {give@A} {H:full} {F:new}.", "{A} {sing@A} to {H:obj}."),
    ("{H} {be@H} {?feeling}, but {A} {be@A} {?feeling}.", "{H} {?act@H} {?manner}.", "{H} {?move@H} {Q:to}."),
    ("{background}", ""),
    ("At night, {H:full} {sleep@H} {Q:there}.", "{H} {follow@H} {A:full} {Q:to}."),
    ("Who {like@it} {H:full}? {A:full} {like@A} {H:full}.", ""),
)

BACKGROUND: Plot = (
    ("It {be@it} a {?weather} {?time}.", "{background}", "{time}, everything {P:there} {be@it} quiet."),
    *[("{background}",)] * 4,
    ("{A:new} {?act@A} {P:there}.", "{background}"),
    ("{A} {?regard@A} {B:new}.", "{A} {have@A} {K:new}. {K} {be@K} {P:there}."),
    ("{background}", ""),
    ("{A} {?act@A} {?manner}.", "{A} {be@A} {?feeling}.", ""),
)

HELPING: Plot = (
    SCENE,
    ("{time}, {A:new} {break@A} {K:new}.", "{K:that} {be@K} broken, and {A:new} {be@A} sad."),
    ('"I cannot mend {K:obj}," {say@A} {A:full}.', "{A} {do@A} not know what to do.", ""),
    ("{A} {ask@A} {B:new} for help.", "{B:new} {hear@B} {A:full} and {come@B} to help."),
    ('"I know what to do," {say@B} {B:full}.', "{B} {look@B} at {K:full} {?manner}.", PAUSE[2]),
    ("{B} {take@B} a {?look} {?tool#1} and {mend@B} {K:full}.", "{B} {mend@B} {K:full} with a {?tool}."),
    ("Now {K:full} {be@K} as good as new.", "{K:full} {be@K} like new.", ""),
    ("{A} {give@A} {B:full} {F:new}.", "{A} {thank@A} {B:full}.", '"Thank you, {B:address}," {say@A} {A:full}.'),
    ("Who {mend@it} {K:full}? {B:full} {mend@B} {K:obj}.", ""),
    HAPPY,
)

MARKET: Plot = (
    (
        "{time}, {A:new} {go@A} to the market with {?number#1} coins.",
        "{A:new} {have@A} {?number#1} coins. {time}, {A} {go@A} to the market.",
    ),
    (
        "The {?food+s} in the {?look} basket {be@many} {?flavour}.",
        "The {?worker+s} near the gate {sell@many} {?thing+s}.",
        PAUSE[2],
    ),
    ("{B:new} {sell@B} {K:new} and {L:new}.", "{B:new} {have@B} {K:new} and {L:new}."),
    ('"How much {be@K!} {K:full}?" {ask@A} {A:full}.', '{A} {ask@A}, "How much {be@K!} {K:full}?"'),
    ('"{?number#1} coins," {B} {answer@B}.', '{B} {say@B}, "{?number#1} coins, please."'),
    ("{A} {give@A} {?number#1} coins to {B:obj}.", "{A} {give@A} {B:full} the {?number#1} coins."),
    ("{A} {buy@A} {K:full}, but not {L:full}.", "{A} {choose@A} {K:full} and {leave@A} {L:full}."),
    ("{A} {carry@A} {K:full} to {A:own} house.", "{A} {put@A} {K:full} {P:there}."),
    ("What {do@A} {A:full} buy? {A:full} {buy@A} {K:full}.", ""),
    HAPPY,
)

PLOTS: tuple[Plot, ...] = (
    LOST,
    LOST,
    GIFT,
    GIFT,
    SWAP,
    JOURNEY,
    JOURNEY,
    SITTING,
    SITTING,
    LESSON,
    RIVERBANK,
    VEHICLE,
    COMPARE,
    PACKING,
    HIDING,
    COOKING,
    NAMING,
    NAMING,
    HABITS,
    GUESSING,
    MEADOW,
    BACKGROUND,
    BACKGROUND,
    HELPING,
    MARKET,
)
