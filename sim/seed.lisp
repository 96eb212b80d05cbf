;;;; Many seeds: a scenario, a function of a seed, is run for one after another. The first seed that
;;;; fails is run once more, with tracers, for its report.

(in-package #:clgrpc.sim)

(define-condition seed-failed (clgrpc-error)
  ((seed :initarg :seed :reader seed-failed-seed) ; the seed for which the scenario failed
   ;; the condition with which the seed failed
   (condition :initarg :condition :reader seed-failed-condition)
   (story :initarg :story :reader seed-failed-story) ; the report, as text
   (rerun :initarg :rerun :reader seed-failed-rerun)) ; the form that runs the scenario again
  (:report (lambda (failure stream)
             (format stream "Seed ~D failed: ~A~2%~A~%To see it again: ~A"
                     (seed-failed-seed failure) (seed-failed-condition failure)
                     (seed-failed-story failure) (seed-failed-rerun failure))))
  (:documentation "A scenario has failed for a seed. The condition's report contains the trace."))

(document-functions
  seed-failed-seed "The seed for which the scenario failed."
  seed-failed-condition "The condition with which the scenario failed.")

(defun run-seed (scenario seed options)
  "Run SCENARIO with SEED. Return the simulation and, if it failed, the condition."
  (let ((run nil))
    (handler-case (progn (apply #'call-with-simulation
                                (lambda (simulation)
                                  (setf run simulation)
                                  (funcall scenario simulation))
                                :seed seed options)
                         (values run nil))
      (error (condition) (values run condition)))))

(defparameter *story-tracers*
  '((:call :server :subchannel :connectivity-state :http)
    (:call :server :subchannel :connectivity-state)
    ())
  "Lists of tracers for the report; the first list with which the seed fails again is used. Several
lists are tried because with :http frames are read one by one, and the failure may not occur then.")

(defun tell-story (scenario seed options failure rerun)
  "Run SCENARIO with SEED, which has failed with FAILURE, again with tracers, and return a
SEED-FAILED."
  (let ((before (tracers)) (simulation nil) (condition nil))
    (unwind-protect
         (loop for tracers in *story-tracers*
               until condition
               do (setf (tracers) tracers
                        (values simulation condition) (run-seed scenario seed options)))
      (setf (tracers) before))
    (make-condition 'seed-failed
                    :seed seed
                    :condition (or condition
                                   (format nil "~A But not when it was run again." failure))
                    :rerun rerun
                    :story (with-output-to-string (stream)
                             (write-history simulation stream)))))

(defun run-seeds (scenario &rest options &key (first 1) (count 100) on-seed rerun
                  &allow-other-keys)
  "Run SCENARIO, a function of a simulation that signals an error if something is wrong, for COUNT
seeds that begin with FIRST. Each seed has a simulation of its own, made with the other OPTIONS,
which are those of WITH-SIMULATION. If a seed fails, run it again with tracers and signal
SEED-FAILED, whose report contains the trace. (RERUN seed), if RERUN is given, returns the report's
text about how to run the seed again. (ON-SEED seed simulation) is called after each seed. Return
the number of seeds that were run."
  (let ((options (alexandria:remove-from-plist options :first :count :on-seed :rerun)))
    (loop for seed from first below (+ first count)
          do (multiple-value-bind (simulation condition) (run-seed scenario seed options)
               (when condition
                 (error (tell-story scenario seed options condition
                                    (if rerun
                                        (funcall rerun seed)
                                        (format nil "(run-seeds ~(~S~) :first ~D :count 1~{ ~(~S~) ~
                                                     ~S~})"
                                                scenario seed options)))))
               (when on-seed (funcall on-seed seed simulation)))
          finally (return count))))
