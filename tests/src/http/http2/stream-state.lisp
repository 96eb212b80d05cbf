;;;; See src/http/http2/stream-state.lisp; tests/support/dialogue/state.lisp shows each row.

(in-package #:clgrpc.tests.http2)

(test state-table-is-complete
  "Every state has every input once, and the compiled table equals the rows."
  (let ((rows (h2::state-rows)))
    (is (equal h2::*states* (mapcar #'first rows)))
    (loop for (state . cells) in rows
          do (is (equal h2::*inputs* (mapcar #'first cells)))
             (loop for (input action next section) in cells
                   for step = (h2::find-step (position state h2::*states*)
                                             (position input h2::*inputs*))
                   do (is (stringp section))
                      (is (= (h2::step-action step)
                             (position (if (consp action) (first action) action) h2::*actions*)))
                      (if next
                          (is (= (h2::step-next step) (position next h2::*states*)))
                          (is (/= h2::+accept+ (h2::step-action step))))))))

(test nothing-leads-out-of-closed
  "Closed and reset are final."
  (dolist (state '(h2::closed h2::reset))
    (loop for (nil action next) in (rest (assoc state (h2::state-rows)))
          do (is (or (not (eq action 'h2::accept)) (eq next state))))))
