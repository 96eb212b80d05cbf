;;;; Names: their text, their octets, and pointers in messages.

(in-package #:clgrpc.tests.dns)

(test names-as-text
  (loop for (text octets) in `(("a" #(1 97 0))
                               ("A.b." #(1 97 1 98 0))
                               ("_x-1.y" #(4 95 120 45 49 1 121 0)))
        do (is (equalp octets (name-octets text)))
           (is (string= (string-right-trim "." (string-downcase text))
                        (name-text (name-octets text)))))
  (is (string= "a\\046b\\000" (name-text (octets-of 4 97 46 98 0 0)))))

(test what-is-no-name
  (dolist (text (list "" "." "a..b" ".a" "a.." "a b" "λ.org" (make-string 64 :initial-element #\a)
                      (format nil "~{~A~^.~}" (loop repeat 128 collect "a"))))
    (signals misuse (name-octets text) "~S is a name" text))
  (finishes (name-octets (make-string 63 :initial-element #\a)))
  (is (= 255 (length (name-octets (format nil "~{~A~^.~}" (loop repeat 127 collect "a")))))))

(defun name-at (octets at)
  "Two values: the text of the name at AT, and its end; or the error."
  (handler-case
      (multiple-value-bind (name end) (dns::read-name (coerce octets 'octets) at (length octets))
        (list (name-text name) end))
    (malformed-message (error) (malformed-message-text error))))

(test names-in-messages
  (is (equal '("a.b" 5) (name-at #(1 65 1 98 0) 0)))
  (is (equal '("b" 5) (name-at #(1 97 1 98 0) 2)))
  (is (equal '("c.a.b" 9) (name-at #(1 97 1 98 0 1 99 #xC0 0) 5)))
  (is (equal '("a.b" 9) (name-at #(1 97 1 98 0 #xC0 0 #xC0 5) 7)))
  (is (equal '("" 1) (name-at #(0) 0))))

(test names-that-are-wrong
  (loop for (octets at text) in '((#() 0 "ends within")
                                  (#(3 97) 0 "ends within")
                                  (#(1 97) 0 "ends within")
                                  (#(#xC0) 0 "ends within")
                                  (#(#xC0 0) 0 "earlier place")
                                  (#(1 97 #xC0 0) 0 "earlier place") ; round and round
                                  (#(1 97 #xC0 4 1 98 #xC0 0) 0 "earlier place")
                                  (#(#xC0 2 0) 0 "earlier place")
                                  (#(#x40 0) 0 "unknown kind")
                                  (#(#x80 0) 0 "unknown kind"))
        do (is (search text (name-at octets at)) "~S at ~D: ~A" octets at (name-at octets at))))

(test long-names-are-wrong
  "This holds for names composed in any way."
  (let ((labels (apply #'join (loop repeat 4 collect (join (octets-of 63) (make-octets 63))))))
    (is (search "more than 255" (name-at (join labels (octets-of 0)) 0)))
    (is (search "more than 255"
                (name-at (join (subseq labels 0 192) (octets-of 0) (octets-of 63) (make-octets 63)
                               (octets-of #xC0 0))
                         193)))))

(test names-have-few-pointers
  "Reading a message of many names that all lead through the same pointers would take long."
  (flet ((name-behind (count)
           ;; the root, COUNT pointers, each to the one before it, and the name
           (name-at (apply #'join (octets-of 0) (octets-of #xC0 0)
                           (loop for i from 1 below count collect (octets-of #xC0 (1- (* 2 i)))))
                    (1- (* 2 count)))))
    (is (equal '("" 255) (name-behind 127)))
    (is (search "more than 127 pointers" (name-behind 128)))))
