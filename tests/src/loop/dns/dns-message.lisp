;;;; Messages that we send, messages of servers, and malformed messages.

(in-package #:clgrpc.tests.dns)

(defun parsed (octets)
  (parse-message octets 0 (length octets)))

(test queries
  (is (equalp (join (octets-of #x12 #x34 1 0 0 1 0 0 0 0 0 1) (octets-of 1 97 1 98 0 0 28 0 1)
                    (octets-of 0 0 41 #x04 #xD0 0 0 0 0 0 0))
              (encode-query #x1234 (name-octets "a.b") +aaaa+)))
  (is (equalp (join (octets-of 0 1 1 0 0 1 0 0 0 0 0 0) (octets-of 1 97 0 0 1 0 1))
              (encode-query 1 (name-octets "a") +a+ :extended nil)))
  (let ((message (parsed (encode-query 5 (name-octets "x.y") +txt+))))
    (is (= 5 (message-id message)))
    (is-false (message-response-p message))
    (is (equalp (name-octets "x.y") (dns::question-name (message-question message))))
    (is (= +txt+ (dns::question-type (message-question message))))))

(test answers-with-records
  (let* ((octets (answer-octets (question-octets "x.y" +a+)
                                (list (record-octets +cname+ "z")
                                      (record-octets +a+ "1.2.3.4" :name (name-octets "z"))
                                      (record-octets +a+ "5.6.7.8" :class 3)
                                      (record-octets +aaaa+ "::1")
                                      (record-octets +txt+ '("ab" "" "c"))
                                      (record-octets 99 (octets-of 1 2)))))
         (message (parsed octets)))
    (is (= 7 (message-id message)))
    (is-true (message-response-p message))
    (is-false (message-truncated-p message))
    (is (= 0 (message-code message)))
    (is (equal '((5 "x.y") (1 "z") (28 "x.y") (16 "x.y") (99 "x.y"))
               (mapcar (lambda (record)
                         (list (record-type record) (name-text (record-name record))))
                       (message-records message))))
    (is (equalp (list (name-octets "z") #(1 2 3 4) #(0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1)
                      '(#(97 98) #() #(99)) nil)
                (mapcar #'record-data (message-records message))))
    (is (every (lambda (record) (= 60 (record-seconds record))) (message-records message)))
    ;; wherever it is among other octets
    (is (equalp (mapcar #'record-data (message-records message))
                (mapcar #'record-data
                        (message-records (parse-message (join (octets-of 9 9) octets (octets-of 9))
                                                        2 (+ 2 (length octets)))))))))

(test codes-with-upper-bits
  "An OPT record has the upper bits (RFC 6891)."
  (let ((question (question-octets "x" +a+))
        (opt (octets-of 0 0 41 4 0 1 0 0 0 0 0)))
    (is (= 3 (message-code (parsed (answer-octets question '() :code 3)))))
    ;; the next record is not OPT, and its time to live has no other meaning
    (dolist (more (list '() (list (octets-of 0 0 42 0 1 2 0 0 0 0 0))))
      (is (= 16 (message-code (parsed (answer-octets question '()
                                                     :additional (cons opt more)))))))))

(test truncated-answers-are-not-read
  (let ((message (parsed (join (answer-octets (question-octets "x" +a+) '() :flags #x8380)
                               (octets-of 1 2 3)))))
    (is-true (message-truncated-p message))
    (is (null (message-records message)))))

(defun complaint (octets)
  (handler-case (progn (parsed octets) "")
    (malformed-message (error) (malformed-message-text error))))

(test bad-messages
  (let ((question (question-octets "x" +a+)))
    (flet ((complain (text octets)
             (is (search text (complaint octets)) "~S is not in ~S" text (complaint octets)))
           (record (type &rest length-and-data)
             (join (octets-of #xC0 12) (u16 type) (u16 1) (make-octets 4)
                   (u16 (first length-and-data)) (coerce (rest length-and-data) 'octets))))
      (complain "no header" (make-octets 11))
      (complain "not a standard query" (answer-octets question '() :flags #x8980))
      (complain "ends too soon" (subseq (answer-octets question '()) 0 17))
      (complain "too short for 65535 records"
                (let ((octets (answer-octets question '())))
                  (setf (u16be octets 6) 65535)
                  octets))
      (complain "an address has 4 octets, not 2" (answer-octets question (list (record +a+ 2 1 2))))
      (complain "longer than the message" (answer-octets question (list (record 99 2 1))))
      (complain "longer than its record" (answer-octets question (list (record +txt+ 2 5 1)
                                                                       (record 99 9))))
      (complain "not as long as its record"
                (answer-octets question (list (record +cname+ 3 0 1 2)))))))

(test messages-of-noise
  "Any octets are a message or signal MALFORMED-MESSAGE."
  (let* ((seed (random 1000000 (make-random-state t)))
         (state (sb-ext:seed-random-state seed))
         (samples (list (encode-query 1 (name-octets "a.bc.def") +a+)
                        (answer-octets (question-octets "a.bc.def" +a+)
                                       (list (record-octets +cname+ "z.bc.def")
                                             (record-octets +txt+ '("ab" "" "c"))
                                             (record-octets +a+ "1.2.3.4")
                                             (record-octets +aaaa+ "::1"))
                                       :additional (list (octets-of 0 0 41 4 0 0 0 0 0 0 0)))))
         (good 0) (bad 0))
    (dotimes (i 20000)
      (let ((octets (copy-seq (nth (random 2 state) samples))))
        (dotimes (j (1+ (random 4 state)))
          (setf (aref octets (random (length octets) state))
                (if (zerop (random 3 state))
                    (logior #xC0 (random 64 state))
                    (random 256 state))))
        (handler-case (progn
                        (parse-message octets 0 (- (length octets) (random 3 state)))
                        (incf good))
          (malformed-message () (incf bad)))))
    (is (plusp good) "seed ~D" seed)
    (is (plusp bad) "seed ~D" seed)))

(test messages-of-many-records
  (let ((octets (answer-octets (question-octets "x" +a+)
                               (loop repeat 5000 collect (record-octets 99 (octets-of))))))
    (is (= 5000 (length (message-records (parsed octets)))))))
