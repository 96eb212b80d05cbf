;;;; What a state and an event make, one by one.

(in-package #:clgrpc.tests.workflow)

(defun limits (&rest arguments)
  (apply #'workflow::make-limits arguments))

(defun begun (steps &key (now 1000) (limits (limits)) (input "in") timeout (id "w"))
  "The draft of a workflow of STEPS that begins at NOW."
  (workflow::finish-draft
   (workflow::begin-workflow (pb:make-start-request
                              :id id :steps (workflow::steps-of steps) :input (string-octets input)
                              :timeout-ms (workflow::duration-ms timeout))
                             now limits)))

(defun decided (state now decision &key (limits (limits)) (chance 1))
  "The finished draft that DECISION, a function of a draft, makes of STATE at NOW, or nil."
  (let ((draft (workflow::draft-of state now limits :chance chance)))
    (and (funcall decision draft) (workflow::finish-draft draft))))

(defmacro becomes (place now (function &rest arguments) &rest options)
  "Set PLACE, a state, to what (FUNCTION draft . ARGUMENTS) makes of it at NOW. Return the draft, or
nil if it changes nothing."
  `(let ((draft (decided ,place ,now (lambda (draft) (,function draft ,@arguments)) ,@options)))
     (when draft (setf ,place (workflow::draft-state draft)))
     draft))

(defun step-at (state place)
  (elt (pb:workflow-state-steps state) place))

(defun status-at (state place)
  (pb:step-state-status (step-at state place)))

(defun kinds-of (draft)
  (mapcar #'pb:event-kind (reverse (workflow::draft-events draft))))

(defun payload-texts (draft)
  (loop for (key . octets) in (reverse (append (workflow::draft-small draft)
                                               (workflow::draft-payloads draft)))
        collect (cons key (octets-string octets))))

(test a-workflow-goes-from-step-to-step
  (let* ((draft (begun '("a" (:task "b" :input "own") "c")))
         (state (workflow::draft-state draft)))
    (is (equal '(("input" . "in") ("in/2" . "own")) (payload-texts draft)))
    (is (equal '(:started) (kinds-of draft)))
    (is (= 1 (pb:workflow-state-version state)))
    (is (equal '(:ready :waiting :waiting) (loop for i below 3 collect (status-at state i))))
    (is (string= "input" (workflow::input-key state)))
    (is (null (becomes state 2000 (workflow::claim-step "s1" '("b" "c")))))
    (is (equal '(:step-claimed) (kinds-of (becomes state 2000 (workflow::claim-step "s1" '("a"))))))
    (is (= 1 (pb:workflow-state-fence state)))
    (is (null (becomes state 2000 (workflow::claim-step "s2" '("a")))))
    (let ((draft (becomes state 3000 (workflow::report-result 1 (string-octets "A") '()))))
      (is (equal '(:step-done) (kinds-of draft)))
      (is (equal '(("out/1" . "A")) (payload-texts draft))))
    (is (string= "in/2" (workflow::input-key state)))
    (is (= 3 (workflow::input-octets state)))
    (becomes state 4000 (workflow::claim-step "s1" '("b")))
    (becomes state 5000 (workflow::report-result 2 (make-octets 0) '()))
    (is (string= "" (workflow::input-key state)))
    (becomes state 6000 (workflow::claim-step "s1" '("c")))
    (is (equal '(:step-done :ended)
               (kinds-of (becomes state 7000 (workflow::report-result 3 (string-octets "C") '())))))
    (is (eq :completed (pb:workflow-state-status state)))
    (is (= 7000 (pb:workflow-state-ended-unix-ms state)))
    (is (= 7 (pb:workflow-state-version state)))))

(defun events-of (draft)
  "What the history says of DRAFT: of each event its kind, the number and attempt of its step, its
fence, its worker and its text."
  (loop for event in (reverse (workflow::draft-events draft))
        collect (list (pb:event-kind event) (pb:event-step event) (pb:event-attempt event)
                      (pb:event-fence event) (pb:event-worker event) (pb:event-text event))))

(test events-say-what-has-happened-to-which-step
  (let ((state (workflow::draft-state (begun '((:task "a" :attempts 2 :backoff 1) (:signal "go")
                                               (:wait 1) "b")))))
    (macrolet ((rows (&rest rows)
                 `(progn
                    ,@(loop for (now decision . events) in rows
                            collect `(is (equal ',events (events-of (becomes state ,now ,decision)))
                                         "~S" ',decision)))))
      (rows (1 (workflow::claim-step "s" '("a")) (:step-claimed 1 1 1 "s" ""))
            (2 (workflow::report-failure 1 "no" nil) (:attempt-failed 1 1 1 "" "no"))
            (5000 (workflow::handle-due-event) (:step-ready 1 1 0 "" ""))
            (6000 (workflow::claim-step "s" '("a")) (:step-claimed 1 2 2 "s" ""))
            (6000 (workflow::give-back 2) (:attempt-given-back 1 2 2 "" ""))
            (6000 (workflow::claim-step "s" '("a")) (:step-claimed 1 2 3 "s" ""))
            (6000 (workflow::lose-claim "s" nil)
             (:attempt-lost 1 2 3 "" "the session s has ended or lost the task"))
            (6000 (workflow::claim-step "s" '("a")) (:step-claimed 1 2 4 "s" ""))
            (6000 (workflow::report-result 4 (make-octets 0) '()) (:step-done 1 2 4 "" ""))
            (6000 (workflow::note-signal "go" "signal/x" 0)
             (:signalled 0 0 0 "" "go") (:step-done 2 0 0 "" ""))
            (8000 (workflow::handle-due-event) (:step-done 3 0 0 "" ""))
            (8000 (workflow::claim-step "s" '("b")) (:step-claimed 4 1 5 "s" ""))
            (8000 (workflow::report-failure 5 "bad" t)
             (:step-failed 4 1 5 "" "bad") (:ended 0 0 0 "" "step 4, b: bad"))))))

(test reports-count-once
  "The same report again changes nothing, whatever has become of the workflow; one of a claim that
is over is refused."
  (let ((state (workflow::draft-state (begun '("a" "b")))))
    (becomes state 1 (workflow::claim-step "s1" '("a")))
    (becomes state 2 (workflow::lose-claim "s1" nil))
    (is (eq :ready (status-at state 0)))
    (signals claim-lost (becomes state 3 (workflow::report-result 1 (make-octets 1) '())))
    (becomes state 4 (workflow::claim-step "s2" '("a")))
    (signals claim-lost (becomes state 5 (workflow::report-result 1 (make-octets 1) '())))
    (signals claim-lost (becomes state 5 (workflow::report-failure 1 "late" nil)))
    (signals claim-lost (becomes state 5 (workflow::give-back 1)))
    (is (null (becomes state 5 (workflow::lose-claim "s1" nil))))
    (is-true (becomes state 6 (workflow::report-failure 2 "no" nil)))
    (is (null (becomes state 7 (workflow::report-failure 2 "no" nil))))
    ;; another report with the same fence is not the same report
    (signals claim-lost (becomes state 7 (workflow::report-result 2 (make-octets 1) '())))
    (signals claim-lost (becomes state 7 (workflow::report-failure 2 "yes" nil)))
    (becomes state 10000 (workflow::handle-due-event))
    (becomes state 10000 (workflow::claim-step "s1" '("a")))
    (is-true (becomes state 10001 (workflow::report-result 3 (string-octets "x") '())))
    (is (null (becomes state 10002 (workflow::report-result 3 (string-octets "x") '()))))
    (is (null (becomes state 10002 (workflow::report-failure 2 "no" nil))))
    (signals claim-lost (becomes state 10003 (workflow::report-result 4 (make-octets 1) '())))
    (becomes state 10004 (workflow::cancel-state "enough"))
    (is (null (becomes state 10005 (workflow::report-result 3 (string-octets "x") '()))))
    (signals workflow-closed (becomes state 10005 (workflow::report-result 4 (make-octets 1) '())))
    (is (null (becomes state 10006 (workflow::cancel-state "enough"))))
    (signals workflow-closed (becomes state 10006 (workflow::note-signal "x" "signal/x" 0)))))

(test fences-only-grow
  "A claim's fence is above those before, and not below the revision of the state it is made of: so
it is above all of a workflow of the same id that was there before."
  (let ((state (workflow::draft-state (begun '("a" "b" "c")))))
    (flet ((claim (revision)
             (let ((draft (workflow::draft-of state 1 (limits) :revision revision)))
               (is-true (workflow::claim-step draft "s" '("a" "b" "c")))
               (setf state (workflow::draft-state (workflow::finish-draft draft)))
               (pb:workflow-state-fence state))))
      (is (= 57 (claim 57)))
      (becomes state 2 (workflow::give-back 57))
      (is (= 58 (claim 58)))
      (becomes state 3 (workflow::give-back 58))
      (is (= 80 (claim 80)))
      ;; that with a report is the first that it is answered with, and the only one
      (becomes state 4 (workflow::report-result 80 (make-octets 0) '()))
      (is (null (workflow::next-claim state 80)))
      (is (= 85 (claim 85)))
      (is (null (workflow::next-claim state 80)))
      (let ((draft (workflow::draft-of state 5 (limits) :revision 90)))
        (is-true (workflow::report-result draft 85 (make-octets 0) '()))
        (is-true (workflow::claim-next draft 85 "s" '("c")))
        (setf state (workflow::draft-state (workflow::finish-draft draft))))
      (is (= 90 (workflow::next-claim state 85)))
      (becomes state 6 (workflow::lose-claim "s" nil))
      (is (null (workflow::next-claim state 85)))
      (is (= 91 (claim 91)))
      (is (null (workflow::next-claim state 85)))
      (becomes state 7 (workflow::lose-claim "s" nil))
      (is (= 92 (claim 12)) "a store that was restored counts its revisions again"))))

(test attempts-pause-longer-and-end
  (let ((state (workflow::draft-state
                (begun '((:task "a" :attempts 4 :backoff 1 :max-backoff 3 :factor 2)))))
        (now 0))
    (loop for pause in '(1000 2000 3000)
          for attempt from 1
          do (becomes state now (workflow::claim-step "s" '("a")))
             (is (= attempt (pb:step-state-attempts (step-at state 0))))
             (becomes state now (workflow::report-failure attempt "no" nil))
             (is (eq :pausing (status-at state 0)))
             (is (= (+ now pause) (workflow::next-time state)))
             (is (null (becomes state (+ now pause -1) (workflow::handle-due-event))))
             (incf now pause)
             (is-true (becomes state now (workflow::handle-due-event)))
             (is (eq :ready (status-at state 0))))
    (becomes state now (workflow::claim-step "s" '("a")))
    (is (equal '(:step-failed :ended)
               (kinds-of (becomes state now (workflow::report-failure 4 "no" nil)))))
    (is (eq :failed (pb:workflow-state-status state)))
    (is (search "no (attempt 4, the last)" (pb:workflow-state-reason state))))
  ;; chance makes pauses shorter, up to half
  (let ((state (workflow::draft-state (begun '((:task "a" :backoff 1))))))
    (becomes state 0 (workflow::claim-step "s" '("a")))
    (becomes state 0 (workflow::report-failure 1 "no" nil) :chance 0)
    (is (= 500 (workflow::next-time state))))
  ;; what cannot succeed is not tried again; what is given back counts as no attempt
  (let ((state (workflow::draft-state (begun '((:task "a" :attempts 1))))))
    (dotimes (i 3)
      (becomes state 0 (workflow::claim-step "s" '("a")))
      (becomes state 0 (workflow::give-back (1+ i))))
    (is (eq :ready (status-at state 0)))
    (becomes state 0 (workflow::claim-step "s" '("a")))
    (becomes state 0 (workflow::report-failure 4 "never" t))
    (is (eq :failed (pb:workflow-state-status state))))
  ;; what was lost or given back makes no later pause longer
  (let ((state (workflow::draft-state (begun '((:task "a" :attempts 2 :backoff 1))))))
    (dotimes (i 3)
      (becomes state 0 (workflow::claim-step "s" '("a")))
      (becomes state 0 (workflow::lose-claim "s" nil)))
    (becomes state 0 (workflow::claim-step "s" '("a")))
    (becomes state 0 (workflow::report-failure 4 "no" nil))
    (is (= 1000 (workflow::next-time state)))
    (is (zerop (pb:step-state-losses (step-at state 0))))))

(test losses-are-not-failures
  "With one attempt only a task may be lost with its worker; after three times it pauses, longer and
longer; after twenty in a row it fails, since it may be what ends its workers."
  (let ((state (workflow::draft-state (begun '((:task "a" :attempts 1 :backoff 1)))))
        (now 0) (pauses '()))
    (loop repeat 19
          do (becomes state now (workflow::claim-step "s" '("a")))
             (is (= 1 (pb:step-state-attempts (step-at state 0))))
             (is (equal '(:attempt-lost) (kinds-of (becomes state now
                                                            (workflow::lose-claim "s" nil)))))
             (is (= 0 (pb:step-state-attempts (step-at state 0))))
             (let ((due (workflow::next-time state)))
               (push (if due (- due now) 0) pauses)
               (when due
                 (setf now due)
                 (is (equal '(:step-ready)
                            (kinds-of (becomes state now (workflow::handle-due-event))))))))
    (is (equal (append '(0 0 0 1000 2000 4000 8000 16000 32000)
                       (make-list 10 :initial-element 60000))
               (nreverse pauses)))
    (becomes state now (workflow::claim-step "s" '("a")))
    (is (equal '(:attempt-lost :step-failed :ended)
               (kinds-of (becomes state now (workflow::lose-claim "s" nil)))))
    (is (search "the loss 20 in a row" (pb:workflow-state-reason state)))))

(test giving-back-costs-little
  "However often a task is given back: it pauses, and what is known of its reports does not grow."
  (let ((state (workflow::draft-state (begun '((:task "a" :attempts 1 :backoff 1)))))
        (now 0))
    (loop for fence from 1 to 100
          do (becomes state now (workflow::claim-step "s" '("a")))
             (becomes state now (workflow::give-back fence))
             (is (eq (if (<= fence 3) :ready :pausing) (status-at state 0)))
             (let ((due (workflow::next-time state)))
               (when due
                 (setf now due)
                 (becomes state now (workflow::handle-due-event)))))
    (is (< (* 90 60000) now))
    (is (= 8 (length (pb:step-state-recorded (step-at state 0)))))
    ;; the last ones are known again
    (is (null (becomes state now (workflow::give-back 100))))
    (signals claim-lost (becomes state now (workflow::give-back 1)))
    (becomes state now (workflow::claim-step "s" '("a")))
    (becomes state now (workflow::report-result 101 (make-octets 1) '()))
    (is (eq :completed (pb:workflow-state-status state)))))

(test times
  (let ((state (workflow::draft-state (begun '((:wait 5) (:until 2) (:until 20) "a") :now 1000))))
    (is (= 6000 (workflow::next-time state)))
    (is (null (becomes state 5999 (workflow::handle-due-event))))
    ;; the second one's time was over before it began
    (is (equal '(:step-done :step-done)
               (kinds-of (becomes state 6000 (workflow::handle-due-event)))))
    (is (= 20000 (workflow::next-time state)))
    ;; a clock that is set back makes it later, never twice
    (is (null (becomes state 10 (workflow::handle-due-event))))
    (is-true (becomes state 9999999 (workflow::handle-due-event)))
    (is (eq :ready (status-at state 3)))
    (is (null (workflow::next-time state)))
    (is (null (becomes state 99999999 (workflow::handle-due-event)))))
  ;; the input of a workflow passes by a time
  (let ((state (workflow::draft-state (begun '((:wait 0) "a")))))
    (becomes state 2000 (workflow::handle-due-event))
    (is (eq :ready (status-at state 1)))
    (is (string= "input" (workflow::input-key state)))))

(test time-limits
  "Of an attempt, of a step, of a workflow; what comes first counts, however late anybody looks."
  (let ((state (workflow::draft-state
                (begun '((:task "a" :attempt-timeout 2 :timeout 100 :backoff 1)) :now 0))))
    (becomes state 1000 (workflow::claim-step "s" '("a")))
    (is (= 3000 (workflow::next-time state)))
    (is (equal '(:attempt-lost) (kinds-of (becomes state 3000 (workflow::handle-due-event)))))
    (signals claim-lost (becomes state 3001 (workflow::report-result 1 (make-octets 0) '())))
    (is (equal '(:step-ready) (kinds-of (becomes state 4000 (workflow::handle-due-event)))))
    (is (= 100000 (workflow::next-time state)))
    (becomes state 100000 (workflow::handle-due-event))
    (is (eq :failed (pb:workflow-state-status state)))
    (is (search "the time of the step is over" (pb:workflow-state-reason state))))
  (let ((state (workflow::draft-state (begun '((:wait 10)) :now 0 :timeout 20))))
    (becomes state 50000 (workflow::handle-due-event))
    (is (eq :completed (pb:workflow-state-status state))))
  (let ((state (workflow::draft-state (begun '((:signal "x")) :now 0 :timeout 20))))
    (becomes state 20000 (workflow::handle-due-event))
    (is (eq :failed (pb:workflow-state-status state)))
    (is (search "time of the workflow is over" (pb:workflow-state-reason state)))))

(test signals-wait-for-their-steps
  (let ((state (workflow::draft-state (begun '("a" (:signal "x") (:signal "x") "b")))))
    (is (equal '(:signalled) (kinds-of (becomes state 1 (workflow::note-signal "x" "signal/1" 5)))))
    (becomes state 2 (workflow::note-signal "y" "signal/2" 5))
    (becomes state 3 (workflow::claim-step "s" '("a")))
    (is (equal '(:step-done :step-done)
               (kinds-of (becomes state 4 (workflow::report-result 1 (make-octets 0) '())))))
    (is (eq :listening (status-at state 2)))
    (is (= 1 (length (pb:workflow-state-signals state))))
    (becomes state 5 (workflow::note-signal "z" "signal/3" 5))
    (is (eq :listening (status-at state 2)))
    (is (equal '(:signalled :step-done)
               (kinds-of (becomes state 6 (workflow::note-signal "x" "signal/4" 9)))))
    (is (string= "signal/4" (workflow::input-key state)))
    (is (= 9 (workflow::input-octets state))))
  (let ((state (workflow::draft-state (begun '("a")))) (limits (limits :max-signals 2)))
    (dotimes (i 2) (becomes state i (workflow::note-signal "x" (format nil "signal/~D" i) 0)
                            :limits limits))
    (with-signalled (condition backlog-full
                     (becomes state 3 (workflow::note-signal "x" "signal/3" 0) :limits limits))
      (is (string= "max-signals" (workflow-error-limit condition)))
      (is (= 2 (workflow-error-most condition))))))

(test steps-can-be-added
  "What a step adds comes before what is left; numbers and inputs stay whose they are."
  (let ((state (workflow::draft-state (begun '("a" (:task "z" :input "z-in"))))))
    (becomes state 1 (workflow::claim-step "s" '("a")))
    (let ((draft (becomes state 2 (workflow::report-result
                                   1 (string-octets "A")
                                   (workflow::steps-of '("b" (:task "c" :input "c-in")))))))
      (is (equal '(("out/1" . "A") ("in/4" . "c-in")) (payload-texts draft))))
    (is (equal '(1 3 4 2) (map 'list #'pb:step-state-number (pb:workflow-state-steps state))))
    (is (equal '(:done :ready :waiting :waiting) (loop for i below 4 collect (status-at state i))))
    (is (string= "out/1" (workflow::input-key state)))
    (becomes state 3 (workflow::claim-step "s" '("b")))
    (becomes state 4 (workflow::report-result 2 (make-octets 0) '()))
    (is (string= "in/4" (workflow::input-key state)))
    (becomes state 5 (workflow::claim-step "s" '("c")))
    (becomes state 6 (workflow::report-result 3 (make-octets 0) '()))
    (is (string= "in/2" (workflow::input-key state)))))

(defparameter *wrong-factors*
  (list -1 0.5 1001 1d308 sb-ext:double-float-positive-infinity
        (sb-kernel:make-double-float #x7FF80000 0))
  "Factors of back-off that are refused. A compiler that sees the NaN in a loop may compare it.")

(test limits-are-told
  (flet ((limit-of (function)
           (handler-case (progn (funcall function) nil)
             (too-large (condition) (workflow-error-limit condition)))))
    (is (string= "max-payload-octets"
                 (limit-of (lambda () (begun '("a") :input (make-string 11 :initial-element #\x)
                                                    :limits (limits :max-payload-octets 10))))))
    (is (string= "max-steps" (limit-of (lambda () (begun '("a" "b" "c")
                                                         :limits (limits :max-steps 2))))))
    (is (string= "name-octets"
                 (limit-of (lambda ()
                             (begun '("a") :id (make-string 129 :initial-element #\a))))))
    (let ((state (workflow::draft-state (begun '("a") :limits (limits :max-steps 2)))))
      (becomes state 1 (workflow::claim-step "s" '("a")))
      (is (string= "max-steps"
                   (limit-of (lambda ()
                               (becomes state 2 (workflow::report-result
                                                 1 (make-octets 0) (workflow::steps-of '("b" "c")))
                                        :limits (limits :max-steps 2))))))
      (is (string= "max-payload-octets"
                   (limit-of (lambda ()
                               (becomes state 2 (workflow::report-result 1 (make-octets 11) '())
                                        :limits (limits :max-payload-octets 10))))))
      (is (eq :claimed (status-at state 0)))))
  (dolist (id '("" "a/b" "a
b"))
    (signals invalid-request (begun '("a") :id id)))
  (signals invalid-request (begun '()))
  (signals invalid-request (begun (list (pb:make-step))))
  (signals invalid-request (begun (list (pb:make-step :wait-ms -1))))
  (dolist (factor *wrong-factors*)
    (signals invalid-request (begun (list (pb:make-step :task "a" :backoff-factor factor))))))

(defun count-operations (draft)
  (length (workflow::draft-operations "" draft)))

(defun end-of-state (state limits)
  "The state that STATE comes to by all changes that are due at once, each of which etcd takes."
  (loop while (workflow::running-p state)
        do (is (<= (count-operations
                    (becomes state 3000 (workflow::handle-due-event) :limits limits))
                   128)))
  state)

(test many-steps-that-are-done-at-once
  "However many steps end by one event, each change has no more operations than etcd takes."
  (let ((limits (limits :max-steps 1000 :max-signals 1000)))
    (loop for (done-at-once count signals) in '(((:until 0) 999 0) ((:signal "x") 150 150)) do
      (let ((state (workflow::draft-state
                    (begun (list* "a" (loop repeat count collect done-at-once)) :limits limits))))
        (dotimes (i signals)
          (becomes state 1500 (workflow::note-signal "x" (format nil "signal/~D" i) 0)
                   :limits limits))
        (becomes state 2000 (workflow::claim-step "s" '("a")) :limits limits)
        (let ((draft (becomes state 3000 (workflow::report-result 1 (make-octets 300) '())
                              :limits limits)))
          (is (<= (count-operations draft) 128))
          (is (eq :timing (status-at state (pb:workflow-state-current state))))
          (is (= 65 (pb:workflow-state-current state))))
        (setf state (end-of-state state limits))
        (is (eq :completed (pb:workflow-state-status state)))
        (is (= (1+ count) (count :done (pb:workflow-state-steps state)
                           :key #'pb:step-state-status)))))))

(test many-steps-that-begin-at-once
  "A workflow that is begun has no more operations than etcd takes, or is refused."
  (let ((limits (limits :max-steps 1000)))
    (flet ((start (steps inputs)
             (count-operations
              (begun (loop for i below steps
                           collect (if (< i inputs)
                                       `(:task "a" :input ,(make-string (+ 300 i)
                                                                        :initial-element #\i))
                                       '(:until 0)))
                     :limits limits))))
      (is (<= (start 1000 0) 128))
      (is (<= (start 256 89) 128))
      (is (<= (start 1000 68) 128))
      (with-signalled (condition too-large (start 1000 69))
        (is (string= "inputs" (workflow-error-limit condition)))
        (is (= 69 (workflow-error-most condition)))))))

(test states-stay-storable
  "Texts are kept in part, so many octets of them; a workflow whose state grows too large fails,
while that still can be written down; one that is too large is not begun, and nothing is added to
it."
  (let ((text (workflow::short-text (make-string 2000 :initial-element (code-char #x1F600)))))
    (is (= 500 (length text))))
  (is (string= "short" (workflow::short-text "short")))
  (let ((limits (limits :max-state-octets 1000)))
    (flet ((steps (count) (loop for i below count collect (format nil "kind-~20,'0D" i))))
      (handler-case (progn (begun (steps 60) :limits limits) (fail "too large"))
        (too-large (condition) (is (string= "max-state-octets" (workflow-error-limit condition)))))
      (let ((state (workflow::draft-state (begun '("a" "b") :limits limits))))
        (becomes state 1 (workflow::claim-step "s" '("a")) :limits limits)
        (signals too-large
          (becomes state 2 (workflow::report-result 1 (make-octets 0)
                                                    (workflow::steps-of (steps 60)))
                   :limits limits))
        (becomes state 2 (workflow::report-failure
                          1 (make-string 1200 :initial-element #\x) nil) :limits limits)
        (is (eq :failed (pb:workflow-state-status state)))
        (is (search "max-state-octets" (pb:workflow-state-reason state))))))
  ;; the error of an attempt is forgotten when the step is done
  (let ((state (workflow::draft-state (begun '("a")))))
    (becomes state 1 (workflow::claim-step "s" '("a")))
    (becomes state 2 (workflow::report-failure 1 "by chance" nil))
    (is (string= "by chance" (pb:step-state-error (step-at state 0))))
    (becomes state 10000 (workflow::handle-due-event))
    (becomes state 10001 (workflow::claim-step "s" '("a")))
    (becomes state 10002 (workflow::report-result 2 (make-octets 0) '()))
    (is (string= "" (pb:step-state-error (step-at state 0))))))

(test histories-end
  "A workflow that has had as many changes as there may be fails."
  (let* ((limits (limits :max-changes 10))
         (state (workflow::draft-state (begun '("a") :limits limits))))
    (loop for fence from 1
          for now from 1 by 100000
          while (workflow::running-p state)
          do (becomes state now (workflow::handle-due-event) :limits limits)
             (becomes state now (workflow::claim-step "s" '("a")) :limits limits)
             (when (workflow::running-p state)
               (becomes state now (workflow::give-back fence) :limits limits)))
    (is (= 10 (pb:workflow-state-version state)))
    (is (eq :failed (pb:workflow-state-status state)))
    (is (search "more than 10 changes" (pb:workflow-state-reason state)))))

(test what-has-ended-is-forgotten
  (let ((state (workflow::draft-state (begun '((:wait 1)) :now 0
                                                          :limits (limits :retention-seconds 60)))))
    (becomes state 1000 (workflow::handle-due-event) :limits (limits :retention-seconds 60))
    (is (= 61000 (workflow::next-time state)))
    (is (workflow::draft-forgotten (becomes state 61000 (workflow::handle-due-event)))))
  (let* ((limits (limits :retention-seconds nil))
         (state (workflow::draft-state (begun '((:wait 0)) :limits limits))))
    (becomes state 5000 (workflow::handle-due-event) :limits limits)
    (is (eq :completed (pb:workflow-state-status state)))
    (is (null (workflow::next-time state)))))

(test the-same-request-starts-alike
  (flet ((request (&rest arguments)
           (apply #'pb:make-start-request :id "w" arguments)))
    (let* ((steps (workflow::steps-of '("a" (:wait 1))))
           (request (request :steps steps :input (string-octets "x")))
           (state (workflow::draft-state (workflow::begin-workflow request 0 (limits)))))
      (is-true (workflow::begun-alike-p state (protobuf:copy-message request)))
      (signals workflow-exists
        (workflow::begun-alike-p state (request :steps steps :input (string-octets "y"))))
      (signals workflow-exists
        (workflow::begun-alike-p state (request :steps (rest steps) :input (string-octets "x")))))))

(test digests-tell-reports-apart
  "A digest is a cryptographic one, and says where one thing ends and the next begins."
  (flet ((distinct-p (a b)
           (not (equalp (apply #'workflow::digest a) (apply #'workflow::digest b)))))
    (is (= 16 (length (workflow::digest "result" (string-octets "x")))))
    (is (equalp (workflow::digest "a" (string-octets "b")) (workflow::digest "a" "b")))
    (is-true (distinct-p '("ab" "c") '("a" "bc")))
    (is-true (distinct-p '("a") '("a" "")))
    (is-true (distinct-p '("1 a") '("a")))))
