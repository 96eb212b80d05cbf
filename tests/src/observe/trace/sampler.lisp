;;;; Samplers, by themselves.

(in-package #:clgrpc.tests.trace)
(in-suite :clgrpc.trace)

(defun place (low &key (sampled t) (remote t))
  (trace::make-trace-context :high 1 :low low :id 1 :sampled sampled :remote remote))

(defun samples-p (sampler parent low)
  (and (funcall (trace::find-sampler sampler) parent (place low)) t))

(test samplers-by-name
  (is-true (samples-p :always-on nil 0))
  (is-false (samples-p :always-off (place 0) 0))
  (is-true (samples-p '(:trace-id-ratio 1) nil (1- (ash 1 64))))
  (is-false (samples-p '(:trace-id-ratio 0) nil 0))
  ;; the upper 63 bits of the second half of the trace id, as OpenTelemetry's implementations have
  (is-true (samples-p '(:trace-id-ratio 0.5) nil (1- (ash 1 63))))
  (is-false (samples-p '(:trace-id-ratio 0.5) nil (ash 1 63)))
  (dolist (wrong '(nil t :sometimes (:trace-id-ratio) (:trace-id-ratio 2) (:trace-id-ratio 0.1 1)
                   (:parent-based) (:parent-based :maybe) (:parent-based :always-on :no 1) 0.5))
    (signals misuse (trace::find-sampler wrong))))

(test ids-beyond-a-bound-are-not-sampled
  (dolist (ratio '(0 1/100 1/2 99/100))
    (let* ((form (list :trace-id-ratio ratio)) (bound (trace::root-bound form)))
      (dolist (id (list 0 1 12345 (ash 1 62) (ash 1 63) (1- (ash 1 64))))
        (is-false (samples-p form nil (trace::id-beyond id bound)) "~A of ~A" id ratio))
      (is (= bound (trace::root-bound (list :parent-based form))))))
  (is (= 77 (trace::id-beyond 77 (trace::root-bound :always-on))))
  (is (= trace::+no-bound+ (trace::root-bound '(:parent-based :always-on))
         (trace::root-bound (constantly t)))))

(test a-ratio-is-kept
  (let ((sampler (trace::find-sampler '(:trace-id-ratio 1/100))) (ids (trace::make-ids 7)))
    (is (< 850
           (loop repeat 100000
                 count (funcall sampler nil (place (trace::next-id ids nil))))
           1150))))

(test the-parent-decides
  (let ((form '(:parent-based :always-on)))
    (is-true (samples-p form nil 5))
    (is-true (samples-p form (place 5) 5))
    (is-false (samples-p form (place 5 :sampled nil) 5))
    (is-false (samples-p form (place 5 :sampled nil :remote nil) 5)))
  (let ((form '(:parent-based :always-off :remote-parent-not-sampled :always-on
                :local-parent-sampled :always-off)))
    (is-false (samples-p form nil 5))
    (is-true (samples-p form (place 5 :sampled nil) 5))
    (is-true (samples-p form (place 5) 5))
    (is-false (samples-p form (place 5 :remote nil) 5))))

(test a-sampler-of-ones-own
  (is-true (samples-p (lambda (parent id) (and (null parent) (= 5 (aref id 15)))) nil 5))
  (is-false (samples-p (lambda (parent id) (and (null parent) (= 5 (aref id 15)))) nil 6)))
