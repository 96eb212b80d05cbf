;;;; Names of hosts, looked up by a resolver of the tests' own.

(in-package #:clgrpc.tests.discovery)

(defstruct (book (:copier nil))
  "What names mean to a resolver of a test's."
  (lock (sb-thread:make-mutex))         ; of what follows
  (waitqueue (sb-thread:make-waitqueue)) ; OPEN has changed
  (open nil)                            ; the resolver answers
  (asked '())                           ; names that were asked for, the last first
  (news '()))                           ; what was notified, the last first

(defun resolver-of (book)
  "A function that resolves \"slow\" when BOOK is open, \"bad\" never, and all else at once."
  (lambda (host port)
    (sb-thread:with-mutex ((book-lock book))
      (push host (book-asked book))
      (when (search "slow" host)
        (loop until (book-open book)
              do (sb-thread:condition-wait (book-waitqueue book) (book-lock book)))))
    (if (string= "bad" host)
        (values '() "nobody knows it")
        (values (list (clgrpc.os:make-address "127.0.0.1" port)) nil))))

(defun open-book (book)
  (sb-thread:with-mutex ((book-lock book))
    (setf (book-open book) t)
    (sb-thread:condition-broadcast (book-waitqueue book))))

(defun hosts-of (book)
  (clgrpc.discovery::make-hosts (fn (news _failure)
                                  (sb-thread:with-mutex ((book-lock book))
                                    (push (and news t) (book-news book))))
                                :resolve (resolver-of book)))

(test names-are-looked-up-beside
  "A name that takes long holds no other up; one without an address counts as answered."
  (let* ((book (make-book)) (hosts (hosts-of book)))
    (flet ((addresses (name) (clgrpc.discovery::host-addresses hosts name)))
      (clgrpc.discovery::know-hosts hosts '("slow:1" "bad:2" "quick:3"))
      (is-true (clgrpc.discovery::unanswered-p hosts))
      (unwind-protect
           (progn
             (is (null (clgrpc.discovery::begin-lookups hosts)))
             (eventually (= 2 (length (book-news book))))
             (is (equal '("127.0.0.1:3") (addresses "quick:3")))
             (is (null (addresses "bad:2")))
             (is (null (addresses "slow:1")))
             (is-true (clgrpc.discovery::unanswered-p hosts) "one has no answer"))
        (open-book book))
      (eventually (= 3 (length (book-news book))))
      (is (equal '("127.0.0.1:1") (addresses "slow:1")))
      (is-false (clgrpc.discovery::unanswered-p hosts))
      (is (equal '(t t t) (book-news book))))))

(test names-are-looked-up-again
  "After a while, a failure sooner; what has not changed is no news, and what has failed keeps its
addresses."
  (let* ((now 1000) (book (make-book :open t)) (hosts (hosts-of book))
         (loop:*world* (loop:make-world :clock (lambda () now)
                                        :make-random (lambda () (make-random-state t))
                                        :network (loop:make-network))))
    (flet ((lookup (text) (gethash text (clgrpc.discovery::hosts-table hosts)))
           (note (text &rest answer)
             (incf (clgrpc.discovery::hosts-asking hosts))
             (multiple-value-list
              (apply #'clgrpc.discovery::note-answer hosts
                     (gethash text (clgrpc.discovery::hosts-table hosts)) answer))))
      (clgrpc.discovery::know-hosts hosts '("a:1"))
      (is (equal '(t nil) (note "a:1" '("127.0.0.1:1") nil)))
      (is (= (+ now (clgrpc.base:seconds-ns 30)) (clgrpc.discovery::begin-lookups hosts)))
      (is (null (book-asked book)) "nothing is due")
      (is (equal '(nil nil) (note "a:1" '("127.0.0.1:1") nil)))
      (is (equal '(t t) (note "a:1" '() "nobody knows it")))
      (is (equal '(nil nil) (note "a:1" '() "nobody knows it")))
      (is (equal '("127.0.0.1:1") (clgrpc.discovery::host-addresses hosts "a:1")))
      ;; 5 seconds, half of them more or less
      (is (<= (+ now (clgrpc.base:seconds-ns 2.49))
              (clgrpc.discovery::begin-lookups hosts)
              (+ now (clgrpc.base:seconds-ns 7.51))))
      (let ((before (lookup "a:1")))
        (clgrpc.discovery::know-hosts hosts '("a:1" "b:1"))
        (is (eq before (lookup "a:1")))
        (clgrpc.discovery::know-hosts hosts '("b:1"))
        (is (null (lookup "a:1")) "what no server has any more is forgotten")))))

(test lookups-are-bounded
  "So many are under way at most; the others follow as soon as there is room."
  (let* ((book (make-book)) (hosts (hosts-of book))
         (names (loop for i below 10 collect (format nil "slow-~D:1" i))))
    (clgrpc.discovery::know-hosts hosts names)
    (unwind-protect
         (progn
           (clgrpc.discovery::begin-lookups hosts)
           (clgrpc.discovery::begin-lookups hosts)
           (eventually (= clgrpc.discovery::+look-ups-at-once+ (length (book-asked book)))))
      (open-book book))
    (is-true (wait-until (lambda ()
                           (clgrpc.discovery::begin-lookups hosts)
                           (= 10 (length (book-news book))))))
    (is (= 10 (length (book-asked book))))))

(test the-lock-of-hosts-is-taken
  (let ((hosts (hosts-of (make-book))))
    (is (null (support:lockless (clgrpc.discovery::hosts-lock hosts)
                                `(clgrpc.discovery::know-hosts ,hosts ())
                                `(clgrpc.discovery::host-addresses ,hosts "a:1")
                                `(clgrpc.discovery::unanswered-p ,hosts)
                                `(clgrpc.discovery::note-answer ,hosts nil nil nil)
                                `(clgrpc.discovery::begin-lookups ,hosts))))))
