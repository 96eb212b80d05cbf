;;;; Callbacks of calls: what runs, when, and what an error in one does.

(in-package #:clgrpc.tests.wire)

(test callbacks-get-messages-in-order
  "Those that wait, those that come, and the half-close after the last."
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
