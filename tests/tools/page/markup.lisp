(in-package #:clgrpc.tests.page)

(test elements-and-attributes
  (loop for (node text)
          in '(((:p (:class "note" :id nil :hidden t) "a") "<p class=\"note\" hidden>a</p>")
               ((:rect (:x 1.5 :y 2/3 :width 10)) "<rect x=\"1.5\" y=\"0.67\" width=\"10\"/>")
               ((:svg (:|viewBox| "0 0 1 1")) "<svg viewBox=\"0 0 1 1\"></svg>")
               ((:p () "a" ((:br ()) 5 nil) (:b () "c")) "<p>a<br>5<b>c</b></p>")
               (nil ""))
        do (is (string= text (page:markup-text node)))))

(test no-text-becomes-markup
  (is (string= "<p title=\"&quot;&gt;&lt;script&gt;\">&lt;/p&gt;&amp;amp;</p>"
               (page:markup-text '(:p (:title "\"><script>") "</p>&amp;"))))
  (let ((bad (map 'string #'code-char '(0 27 #x9B #xD800 #x202E #x2066 #xFFFE))))
    (is (every (lambda (char) (= #xFFFD (char-code char))) (page:markup-text bad)))))
