;;;; Callbacks of calls: their times, and the effect of an error in one.

(in-package #:clgrpc.tests.wire)

(test callbacks-get-messages-in-order
  "Waiting messages, new ones, and the half-close after the last."
  (with-link (link)
    (let ((call (calls 1)) (seen '()))
      (brings 1 (letter-octets 1 2))
      (rpc:on-message call (lambda (letter) (push (length (letters:letter-text letter)) seen)))
      (rpc:on-half-close call (lambda () (push :half-closed seen)))
      (memory:run-turns memory:*world*)
      (is (equal '(2 1) seen))
      (brings 1 (apply #'letter-octets (loop for i from 3 to 40 collect i)) :end-stream)
      (is (eq :half-closed (first seen)))
      (is (equal (loop for i from 40 downto 1 collect i) (rest seen))))))

(test callbacks-answer-message-after-message
  "All answers to the messages of a read leave in order, in one frame while there is window; answers
beyond the window follow when it has room, and nothing overtakes them."
  (with-link (link)
    (memory:hears '(:settings (:initial-window-size 250)))
    (let ((call (calls 1))
          (dialogue:*most-shown* 1000)
          (letters (loop for i below 6
                         collect (apply #'letter-octets (loop for j from 1 to 5 collect (+ i j))))))
      (rpc:on-message call (lambda (letter) (rpc:send call letter)))
      (memory:run-turns memory:*world*)
      (brings 1 (letter-octets 1))
      (memory:said)
      (flet ((data ()
               (loop for (kind nil text) in (memory:said)
                     when (eq kind :data) collect (map 'octets #'char-code text))))
        (brings 1 (letter-octets 2 3 4))
        (is (equalp (list (letter-octets 2 3 4)) (data)))
        (dolist (octets letters) (brings 1 octets))
        (let ((sent (data)))
          (is (< 190 (reduce #'+ sent :key #'length) 213) "the octets fill the window")
          (memory:hears '(:window-update 1 10000))
          (is (equalp (apply #'concatenate 'octets letters)
                      (apply #'concatenate 'octets (append sent (data)))))))
      (is (= 34 (wire::wire-outbound-spoken (wire::call-wire-outbound call)))))))

(test callbacks-send-no-more-after-the-end
  (with-link (link)
    (let ((call (calls 1)) (outcomes '()))
      (rpc:on-message call (lambda (letter)
                             (push (handler-case (rpc:send call letter)
                                     (error (condition) (type-of condition)))
                                   outcomes)
                             (when (= 2 (length outcomes))
                               (rpc:operate abort call :cancelled "as asked" :local)
                               (push (handler-case (rpc:send call letter)
                                       (error (condition) (type-of condition)))
                                     outcomes))))
      (memory:run-turns memory:*world*)
      (brings 1 (letter-octets 1 2 3))
      (is (equal '(t t status:cancelled) (reverse outcomes))))))

(test callbacks-hear-of-the-end
  (with-link (link)
    (let ((call (calls 1)) (seen '()))
      (rpc:on-cancel call (lambda () (push :cancelled seen)))
      (rpc:on-end call (lambda () (push :ended seen)))
      (memory:hears '(:rst-stream 1 :cancel))
      (is (equal '(:cancelled :ended) (sort seen #'string<))))))

(test errors-in-callbacks-end-their-call-alone
  (with-link (link)
    (let ((call (calls 1)) (other (calls 3)) (*log-function* (constantly nil)))
      (rpc:on-message call (lambda (letter) (declare (ignore letter)) (error "As asked.")))
      (brings 1 (letter-octets 1))
      (is (eq :internal (rpc:call-status call)))
      (is (null (rpc:call-status other)))
      (brings 3 (letter-octets 5))
      (is (equal '(5) (received other))))))
