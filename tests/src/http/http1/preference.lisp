;;;; The weights in a peer's preferences.

(in-package #:clgrpc.tests.http1)

(defun preferences (field)
  "The names and weights that DO-PREFERENCES finds in FIELD, a list."
  (let ((found '()))
    (do-preferences (name parameters weight field) (push (list name weight) found))
    (nreverse found)))

(test weights
  "From 0 to 1, wherever blanks are; 1 without q, and 0 where q cannot be read (RFC 9110 section
12.4.2)."
  (loop for (parameters weight)
          in `(("" 1) (";q=0" 0) (";q=1" 1) (";q=0.5" 1/2) ("; Q=0.25 " 1/4)
               (";level=1;q=0.125" 1/8)
               (,(format nil " ;~Cq=0.001~:*~C" #\Tab) 1/1000) (";q=1.000" 1) (";q=0." 0)
               (";x=q=0" 1)
               (";q=0.1234" 617/5000)
               (";q=" 0) (";q=x" 0) (";q=-1" 0) (";q=0.1.1" 0) (";q=0.12345" 0) (";q=2" 1) (";q" 1))
        do (is (equal (list (list "a" weight)) (preferences (format nil "a~A" parameters)))
               "~S" parameters)))

(test elements-of-preferences
  "Elements without a name are skipped; a field longer than any browser's is ignored."
  (is (equal '() (preferences nil)))
  (is (equal '(("a" 1) ("b" 1/2) ("c" 1))
             (preferences (format nil ", a ,~Cb;q=0.5,,;q=1,c" #\Tab))))
  (is (= 250 (length (preferences (format nil "~{~A~}" (loop repeat 250 collect "a,"))))))
  (is (equal '() (preferences (format nil "~{~A~}b" (loop repeat 250 collect "a,"))))))
