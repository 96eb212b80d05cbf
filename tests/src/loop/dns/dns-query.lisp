;;;; Queries to a server, over UDP and TCP, with lost, late, wrong and forged answers.

(in-package #:clgrpc.tests.dns)

(defun server-address (server)
  (multiple-value-bind (host port) (os:parse-address (name-server-address server))
    (os:make-address host port)))

(defun ask-and-wait (loop servers name type &key (seconds 10))
  "Ask SERVERS, and return the outcome and the data."
  (let ((done (sb-thread:make-semaphore)) (answers '()))
    (on-loop loop (lambda ()
                    (ask loop (mapcar #'server-address servers) (name-octets name) type
                         (seconds-ns seconds)
                         (lambda (outcome data)
                           (push (list outcome data (loop:in-event-loop-p loop)) answers)
                           (sb-thread:signal-semaphore done)))))
    (is-true (sb-thread:wait-on-semaphore done :timeout *patience-seconds*))
    (clgrpc.tests.loop:settle loop)
    (is (= 1 (length answers)))
    (is-true (third (first answers)) "the answer came on another thread")
    (values (first (first answers)) (second (first answers)))))

(defmacro with-server-and-loop ((server loop) &body body)
  `(with-name-server (,server)
     (with-loops (,loop) ()
       ,@body)))

(test asking
  (with-server-and-loop (server loop)
    (set-records server "a.test" +a+ "1.2.3.4" "5.6.7.8")
    (set-records server "a.test" +txt+ '("x" "y"))
    (is (equalp '(:found (#(1 2 3 4) #(5 6 7 8)))
                (multiple-value-list (ask-and-wait loop (list server) "A.test" +a+))))
    (is (equalp '((#(120) #(121)))
                (nth-value 1 (ask-and-wait loop (list server) "a.test" +txt+))))
    (is (eq :no-data (ask-and-wait loop (list server) "a.test" +aaaa+)))
    (set-code server "a.test" 3)
    (is (eq :no-such-name (ask-and-wait loop (list server) "a.test" +a+)))
    (is (equal '(("a.test" 1 :udp) ("a.test" 16 :udp) ("a.test" 28 :udp) ("a.test" 1 :udp))
               (name-server-asked server)))))

(test answered-questions-keep-no-socket
  "The socket of a question is closed when its answer has come, not when the loop ends."
  (with-server-and-loop (server loop)
    (set-records server "a.test" +a+ "1.2.3.4")
    (let ((before (os:open-descriptor-count)))
      (loop repeat 3 do (is (eq :found (ask-and-wait loop (list server) "a.test" +a+))))
      (is (= before (os:open-descriptor-count))))))

(test truncated-answers-are-asked-for-over-tcp
  (with-server-and-loop (server loop)
    (set-records server "a.test" +a+ "1.2.3.4")
    (set-manner server (constantly :truncate))
    (is (eq :found (ask-and-wait loop (list server) "a.test" +a+)))
    (is (equal '(("a.test" 1 :udp) ("a.test" 1 :tcp)) (name-server-asked server)))
    (let ((texts (loop for i below 200 collect (list (format nil "~200,'0D" i)))))
      (apply #'set-records server "long.test" +txt+ texts)
      (is (= 200 (length (nth-value 1 (ask-and-wait loop (list server) "long.test" +txt+))))))
    (set-manner server (fn (_name _type carrier) (if (eq :udp carrier) :truncate :drop)))
    (is (eq :unreachable (ask-and-wait loop (list server) "a.test" +a+)) "the server closes it")
    (set-manner server (fn (_name _type carrier)
                         (if (eq :udp carrier)
                             :truncate
                             (lambda (answer) (list (first (forgeries answer)))))))
    (multiple-value-bind (outcome text) (ask-and-wait loop (list server) "a.test" +a+)
      (is (eq :server-failed outcome))
      (is (search "not for the question" text)))))

(test lost-questions-are-asked-again
  (with-server-and-loop (server loop)
    (set-records server "a.test" +a+ "1.2.3.4")
    (let ((count 0))
      (set-manner server (fn (_name _type _carrier) (if (< (incf count) 3) :drop nil))))
    (is (eq :found (ask-and-wait loop (list server) "a.test" +a+ :seconds 1)))
    (is (= 3 (length (name-server-asked server))))
    (set-manner server (constantly :drop))
    (is (eq :no-answer (ask-and-wait loop (list server) "a.test" +a+ :seconds 1)))
    (is (= 6 (length (name-server-asked server))))))

(defun forgeries (answer)
  "Octets that look like ANSWER, to a question for a.test, and are not; and then ANSWER itself."
  (flet ((forged (at function)
           (let ((copy (copy-seq answer)))
             (setf (aref copy at) (funcall function (aref copy at))
                   (aref copy (1- (length copy))) 66)
             copy)))
    (list (forged 0 (lambda (octet) (logand #xFF (1+ octet))))
          (forged 0 (lambda (octet) (logand #xFF (1- octet))))
          (forged 2 (lambda (octet) (logand 127 octet)))
          (forged 13 (constantly 98))
          (forged 21 (constantly 28))
          (forged 21 (constantly 0))
          (forged 23 (constantly 3))
          (forged 23 (constantly 0))
          (subseq answer 0 20)
          (octets-of)
          (answer-octets (octets-of) '() :id (u16be answer 0) :code 3)
          (answer-octets (question-octets "b.test" +a+) (list (record-octets +a+ "6.6.6.6"))
                         :id (u16be answer 0))
          answer)))

(test forged-answers-are-passed-over
  "Messages with another id, another question, that are no answers, or malformed."
  (with-server-and-loop (server loop)
    (set-records server "a.test" +a+ "1.2.3.4")
    (set-manner server (constantly #'forgeries))
    (is (equalp '(:found (#(1 2 3 4)))
                (multiple-value-list (ask-and-wait loop (list server) "a.test" +a+))))
    (is (= 1 (length (name-server-asked server))))))

(test floods-are-cut-off
  (with-server-and-loop (server loop)
    (set-manner server (constantly (fn (_answer) (loop repeat 200 collect (octets-of 1 2 3)))))
    (is (member (ask-and-wait loop (list server) "a.test" +a+ :seconds 0.5)
                '(:unreachable :no-answer)))))

(test old-servers-are-asked-in-the-old-way
  "They answer that they do not understand OPT, with the question or without it."
  (dolist (old '(:repeat :leave-out))
    (with-server-and-loop (server loop)
      (set-records server "a.test" +a+ "1.2.3.4")
      (set-old server old)
      (is (eq :found (ask-and-wait loop (list server) "a.test" +a+)))
      (is (= 2 (length (name-server-asked server)))))))

(test the-old-way-costs-no-try
  "The first question to a server without OPT does not count as one of the three tries."
  (with-server-and-loop (server loop)
    (set-records server "a.test" +a+ "1.2.3.4")
    (set-old server :repeat)
    (set-manner server
                (fn (_name _type _carrier)
                  (when (<= 2 (length (name-server-asked server)) 3) ; it fails twice
                    (lambda (answer)
                      (list (answer-octets (question-octets "a.test" +a+) '()
                                           :id (u16be answer 0) :code 2))))))
    (is (eq :found (ask-and-wait loop (list server server) "a.test" +a+ :seconds 60)))
    (is (= 4 (length (name-server-asked server))))))

(test the-next-server-is-asked
  (with-name-server (other)
    (with-server-and-loop (server loop)
      (set-records other "a.test" +a+ "1.2.3.4")
      (loop for (code outcome) in '((2 :server-failed) (5 :refused))
            do (set-code server "a.test" code)
               (is (eq outcome (ask-and-wait loop (list server) "a.test" +a+)))
               (is (eq :found (ask-and-wait loop (list server other) "a.test" +a+))))
      (is (= 4 (length (name-server-asked server))) "refusing servers are not asked again"))))

(test answers-truncated-over-tcp-are-a-servers-failure
  "They have no records, but do not show that the name has none: the next server is asked."
  (with-name-server (other)
    (with-server-and-loop (server loop)
      (set-records server "a.test" +a+ "1.2.3.4")
      (set-records other "a.test" +a+ "5.6.7.8")
      (set-manner server (constantly (lambda (answer)
                                       (let ((octets (copy-seq answer)))
                                         (setf (aref octets 2) (logior 2 (aref octets 2)))
                                         (list octets)))))
      (multiple-value-bind (outcome text) (ask-and-wait loop (list server) "a.test" +a+)
        (is (eq :server-failed outcome))
        (is (search "truncated" text)))
      (is (equal '(("a.test" 1 :udp) ("a.test" 1 :tcp)) (name-server-asked server)))
      (is (equalp '(:found (#(5 6 7 8)))
                  (multiple-value-list (ask-and-wait loop (list server other) "a.test" +a+)))))))

(test servers-that-are-not-there
  (with-loops (loop) ()
    (let ((server (make-name-server
                   :address (format nil "127.0.0.1:~D" (clgrpc.tests.loop:closed-port)))))
      (multiple-value-bind (outcome text) (ask-and-wait loop (list server) "a.test" +a+)
        (is (eq :unreachable outcome))
        (is (search "refused" text))
        (is (search (name-server-address server) text))))))

(test loops-that-stop-end-questions
  (with-name-server (server)
    (set-manner server (constantly :drop))
    (let ((answers '()))
      (with-loops (loop) ()
        (on-loop loop (lambda ()
                        (ask loop (list (server-address server)) (name-octets "a") +a+
                             (seconds-ns 60)
                             (fn (outcome _data) (push outcome answers))))))
      (is (equal '(:unreachable) answers)))))

(test nobody-waits-for-what-is-given-up
  (with-server-and-loop (server loop)
    (set-manner server (constantly :drop))
    (let ((done (sb-thread:make-semaphore)) (got nil))
      (on-loop loop (lambda ()
                      (give-up (ask loop (list (server-address server)) (name-octets "a") +a+
                                    (seconds-ns 60)
                                    (fn (outcome _data)
                                      (setf got outcome)
                                      (sb-thread:signal-semaphore done)))
                               (seconds-ns 0.01))))
      (is-true (sb-thread:wait-on-semaphore done :timeout *patience-seconds*))
      (is (eq :no-answer got)))))
