;;;; Characters in texts, wherever they are in a word.

(in-package #:clgrpc.tests.base)

(test characters-are-found
  "In strings of both widths, at each place, from and to each place; no other character is mistaken
for one."
  (dolist (type '(simple-base-string wide-string))
    (dolist (others '(#\a #\b #\Nul #\Rubout))
      (let ((text (coerce (make-string 40 :initial-element others) type)))
        (is (null (char-position #\` text)))
        (loop for place below 40
              do (let ((text (copy-seq text)))
                   (setf (char text place) #\`)
                   (loop for (start end) in '((0 40) (3 40) (0 33) (7 19) (20 20))
                         do (is (eql (position #\` text :start start :end end)
                                     (char-position #\` text :start start :end end))
                                "~A ~S ~D ~D ~D" type others place start end)))))))
  (let ((text (coerce (list #\Nul (code-char #x160) (code-char #x6060)) 'wide-string)))
    (is (null (char-position #\` text)))
    (is (eql 0 (char-position #\Nul text))))
  (signals error (char-position #\a "abc" :start 2 :end 5)))
