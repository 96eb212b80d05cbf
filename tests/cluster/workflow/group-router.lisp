;;;; Routers: which group a workflow is of, and that all that is asked about it goes there.

(in-package #:clgrpc.tests.workflow)

(test ids-have-groups
  "The group follows from the id and the names alone; another group takes its share from all."
  (let* ((groups '(("a" . :a) ("b" . :b) ("c" . :c)))
         (router (make-router groups)) (turned (make-router (reverse groups)))
         (wider (make-router (cons '("d" . :d) groups)))
         (ids (loop for i below 4000 collect (format nil "order-~D" i))))
    (is (equal '(:a :b :c) (router-channels router)))
    ;; as any other program finds it
    (is (equal '(:a :a :c :a) (mapcar (lambda (id) (route router id)) '("x" "y" "z" "ä"))))
    (is (every (lambda (id) (eq (route router id) (route turned id))) ids))
    (loop for group in '(:a :b :c)
          do (is (< 1300 (count group ids :key (lambda (id) (route router id))) 1370)))
    (let ((moved (remove-if (lambda (id) (eq (route router id) (route wider id))) ids)))
      (is (= 996 (length moved)))
      (is (every (lambda (id) (eq :d (route wider id))) moved))))
  (is (eq :channel (route :channel "x")))
  (dolist (wrong '(() ("a") (("a" . nil)) (("a" . :a) ("a" . :b)) :a))
    (signals misuse (make-router wrong))))

(test a-router-stands-for-a-channel
  "Workflows are started, asked about, signalled, awaited and cancelled at their groups, each of
which has a store of its own; lists are those of all."
  (with-memory-node (one)
    (with-memory-node (other)
      (let* ((router (make-router (list (cons "one" one) (cons "other" other))))
             (ids (loop for i below 20 collect (format nil "w~D" i))) (listed '()))
        (dolist (id ids) (start-workflow router id '((:signal "go"))))
        (map-workflows (lambda (summary) (push (pb:workflow-summary-id summary) listed)) router)
        (is (equal (sort (copy-list ids) #'string<) (sort listed #'string<)))
        (dolist (id ids)
          (let ((at (route router id)))
            (is (eq :running (pb:workflow-state-status (state-of at id))))
            (signals workflow-not-found (workflow-state (if (eq at one) other one) id))))
        (is (= 8 (count one ids :key (lambda (id) (route router id)))))
        (dolist (id (rest ids)) (signal-workflow router id "go" "x"))
        (dolist (id (rest ids))
          (is (eq :completed (await-workflow router id :timeout +patience+))))
        (cancel-workflow router (first ids))
        (is (eq :cancelled (pb:workflow-state-status (state-of router (first ids)))))
        (signals misuse (watch-workflow #'identity router nil))))))
