;;;; Samplers, by themselves.

(in-package #:clgrpc.tests.trace)

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
  "One of five samplers, by the parent: whether there is one, where, and whether recorded."
  (let ((parents (list (list nil) (list :remote-parent-sampled (place 5))
                       (list :remote-parent-not-sampled (place 5 :sampled nil))
                       (list :local-parent-sampled (place 5 :remote nil))
                       (list :local-parent-not-sampled (place 5 :sampled nil :remote nil)))))
    (flet ((decisions (&rest form)
             (loop for (nil parent) in parents collect (samples-p form parent 5))))
      (is (equal '(t t nil t nil) (decisions :parent-based :always-on)))
      (is (equal '(nil t nil t nil) (decisions :parent-based :always-off)))
      (loop for (one) in parents
            for others = (loop for (name) in (rest parents) append (list name :always-off))
            for form = (if one
                           (list* :parent-based :always-off one :always-on others)
                           (list* :parent-based :always-on others))
            do (is (equal (loop for (name) in parents collect (eq name one))
                          (apply #'decisions form))
                   "~S" form)))))

(test a-sampler-of-ones-own
  (is-true (samples-p (lambda (parent id) (and (null parent) (= 5 (aref id 15)))) nil 5))
  (is-false (samples-p (lambda (parent id) (and (null parent) (= 5 (aref id 15)))) nil 6)))
