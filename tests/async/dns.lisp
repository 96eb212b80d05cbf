;;;; Look-ups. No name server is asked: what is looked up is in the system's own table, or cannot
;;;; be.

(in-package #:clgrpc.tests.async)

(test lookups-that-need-nobody
  (let ((answers '()))
    (flet ((note (address family) (push (list address family) answers)))
      (with-program ()
        (is-true (dns-lookup "127.0.0.3" #'note))
        (is-true (dns-lookup "localhost" #'note))
        (is-true (dns-lookup "::1" #'note :family +af-inet6+))
        (is-true (dns-lookup "localhost" #'note :family +af-inet6+))
        (is-true (dns-lookup "::2" #'note :family +af-unspec+))
        (is (null answers) "not before they return")
        (is (= 5 (getf (stats) :open-dns-queries)))))
    (is (equal `(("127.0.0.3" ,+af-inet+) ("127.0.0.1" ,+af-inet+) ("::1" ,+af-inet6+)
                 ("::1" ,+af-inet6+) ("::2" ,+af-inet6+))
               (reverse answers)))))

(test lookups-that-fail
  (let ((told '()))
    (with-program ()
      (dns-lookup "::1" #'list :event-cb (lambda (event) (push event told)))
      ;; a name with a space is refused before anybody is asked
      (dotimes (i 10)
        (is-false (dns-lookup (format nil "no such ~D" i) #'list
                              :event-cb (lambda (event) (push event told))))))
    (is (= 11 (length told)))
    (is (every (lambda (event) (typep event 'dns-error)) told))
    (is (search "no address of that family" (princ-to-string (first (last told)))))))

(test lookups-of-something-else
  "A wrong argument is an error of the call, after which the loop does not wait for an answer."
  (with-program ()
    (signals type-error (dns-lookup nil #'list))
    (dolist (family '(:inet 99))
      (signals misuse (dns-lookup "127.0.0.1" #'list :family family)))
    (is (= 0 (getf (stats) :uses)))
    (exit-event-loop)))

(test reverse-lookups-that-go-wrong
  "An error, such as for a name that is not text, is an answer as well: the loop does not wait on."
  (let ((told '()))
    (with-replaced (('os:lookup-name (fn (_function _octets) (error 'mishap))))
      (with-program ()
        (reverse-dns-lookup "127.0.0.1" (lambda (name service)
                                          (push (list name service) told))
                            :event-cb (lambda (event) (push (type-of event) told)))))
    (is (equal '(dns-error) told))))

(defun reverse-lookup-answers ()
  "What the callbacks of a reverse look-up of 127.0.0.1 are given, or the text of the error."
  (let ((told '()))
    (with-program ()
      (reverse-dns-lookup "127.0.0.1" (lambda (&rest arguments) (push arguments told))
                          :event-cb (lambda (event) (push (princ-to-string event) told))))
    told))

(test a-reverse-lookup-has-one-answer
  "The name, or the reason why it was not looked up."
  (with-replaced (('os:lookup-name (fn (_function _octets) (values "a.example" "none" nil))))
    (is (equal '(("a.example" "none")) (reverse-lookup-answers)))
    (with-replaced (('loop:run-on-resolver (constantly nil)))
      (let ((told (reverse-lookup-answers)))
        (is (= 1 (length told)))
        (is (search "too many look-ups are waiting" (first told)))))))

(test reverse-lookups
  (let ((host nil))
    (with-program ()
      (reverse-dns-lookup "127.0.0.1" (fn (name _service) (setf host name))
                          :event-cb (lambda (event) (setf host event)))
      (signals misuse (reverse-dns-lookup "localhost" #'list)))
    ;; who has it depends on the machine
    (is (typep host '(or string dns-error)))))
