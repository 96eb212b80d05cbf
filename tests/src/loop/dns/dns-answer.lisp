;;;; The outcomes of answers: records, aliases, and answers without data.

(in-package #:clgrpc.tests.dns)

(defun outcome-of (type code &rest records)
  "The outcome of a question for TYPE of x, answered with CODE and RECORDS, and the data."
  (multiple-value-list
   (message-outcome (parsed (answer-octets (question-octets "x" type) records :code code))
                    (name-octets "x") type)))

(test records-are-found-in-their-order
  (is (equalp '(:found (#(1 2 3 4) #(5 6 7 8)))
              (outcome-of +a+ 0 (record-octets +a+ "1.2.3.4") (record-octets +txt+ '("a"))
                          (record-octets +a+ "9.9.9.9" :name (name-octets "y"))
                          (record-octets +a+ "5.6.7.8")))))

(test aliases-are-followed
  (flet ((alias (from to) (record-octets +cname+ to :name (name-octets from)))
         (address (name) (record-octets +a+ "1.2.3.4" :name (name-octets name))))
    (is (equalp '(:found (#(1 2 3 4)))
                (outcome-of +a+ 0 (address "z") (alias "X" "Y") (alias "y" "z"))))
    (is (eq :no-data (first (outcome-of +a+ 0 (alias "x" "y")))))
    (is (eq :no-data (first (outcome-of +a+ 0 (alias "x" "y") (alias "y" "x")))) "a circle")
    (loop for (count outcome) in '((16 :found) (17 :no-data))
          do (is (eq outcome (first (apply #'outcome-of +a+ 0 (alias "x" "1")
                                           (address (princ-to-string count))
                                           (loop for i from 1 below count
                                                 collect (alias (princ-to-string i)
                                                                (princ-to-string (1+ i)))))))
                 "~D aliases" count))))

(test answers-that-have-nothing
  (loop for (code outcome text) in '((0 :no-data "x has no A record")
                                     (1 :server-failed "code 1")
                                     (2 :server-failed "fails")
                                     (3 :no-such-name "no such host x")
                                     (5 :refused "refuses"))
        do (destructuring-bind (got data) (outcome-of +a+ code)
             (is (eq outcome got))
             (is (search text data)))))

(defun long-name (last)
  "A name of 255 octets, whose last label ends with the character LAST."
  (let ((label (make-string 63 :initial-element #\a)))
    (name-octets (format nil "~A.~:*~A.~:*~A.~A~C" label (subseq label 3) last))))

(defun answer-full-of-long-names ()
  "The octets of an answer for (long-name #\b), with 4,600 aliases of (long-name #\c), each a
pointer of two octets."
  (let ((buffer (make-buffer)) (count 4600)
        (alias (octets-of 0 5 0 1 0 0 0 9 0 2 #xC0 12)))
    (append-octets buffer (octets-of 0 1 #x81 #x80 0 1 (ash count -8) (logand count 255) 0 0 0 0))
    (append-octets buffer (long-name #\b))
    (append-octets buffer (octets-of 0 1 0 1))
    (append-octets buffer (long-name #\c))
    (append-octets buffer alias)
    (loop repeat (- count 2)
          do (append-octets buffer (octets-of #xC1 15))
             (append-octets buffer alias))
    (append-octets buffer (octets-of #xC0 12)) ; the name is an alias of itself
    (append-octets buffer alias)
    (subseq (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))))

(test aliases-among-many-are-found-quickly
  "Names that differ at their ends are compared by words: searching an answer of 65,000 octets takes
about as long as reading it."
  (let ((octets (answer-full-of-long-names)) (name (long-name #\b)) (reading 0) (looking 0))
    (dotimes (i 3)
      (let* ((begun (thread-time-ns))
             (message (parse-message octets 0 (length octets)))
             (read (thread-time-ns)))
        (is (eq :no-data (message-outcome message name +a+)))
        (incf reading (- read begun))
        (incf looking (- (thread-time-ns) read))))
    (is (< looking (* 5 reading)) "~D ns to read, ~D to look" reading looking)))
